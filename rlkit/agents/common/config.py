"""Fields of `Config` that several agents have, under the same names and with the same meaning."""

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from rlkit import _mesh
from rlkit.agents import base
from rlkit.agents.base import Unused
from rlkit.agents.common.own_parts import OrOwn, has_own_rate, is_own, scheduled
from rlkit.networks.cores.registry import BLOCKS, CELLS
from rlkit.networks.encoders.registry import IMAGES, VECTORS
from rlkit.ops.schedules import Schedule
from rlkit.spaces import Discrete, MultiDiscrete
from rlkit.types import ConfigError

if TYPE_CHECKING:
    EncoderName = str
    LeafEncoderName = str
    CoreName = str
    MemoryName = str
else:
    EncoderName = Literal["auto", *VECTORS, *IMAGES]
    LeafEncoderName = Literal["auto", "none", *VECTORS, *IMAGES]
    CoreName = Literal[*CELLS, *BLOCKS]
    MemoryName = Literal["none", *CELLS, *BLOCKS]
Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]
Count = Annotated[int, Interval(ge=1, le=2**31 - 1)]  # of steps and batches, which are counted in int32
Width = Annotated[int, Interval(ge=1, le=2**20)]  # of an axis of a network's arrays
OneOrMore = BeforeValidator(lambda x: (x,) if type(x) is int else x)  # a number in place of a list of one
_FALLING = ("linear", "cosine")  # schedules
InReplay = Unused(replay=is_own)  # of keys that describe the buffer, where a function of the user's does not read them
InNetwork = Unused(network=is_own)  # of keys that describe the networks, where the user's own replace all of these
InCritics = Unused(**{"network.critics": is_own})  # of keys that describe the critics alone
MemoryLayers = Annotated[int, Interval(ge=1, le=64)]
NumCritics = Annotated[int, Interval(ge=1, le=64)]  # each is a network of its own in the program: compile time


def not_prioritized(replay: Any) -> bool:
    """Return true for a value of `replay` without priorities of rlkit's own."""
    return replay != "prioritized"


def stores_whole_obs(replay: Any) -> bool:
    """Return true for a value of `replay` whose buffer does not store observations once."""
    return is_own(replay) or replay == "hindsight"


def not_hindsight(replay: Any) -> bool:
    """Return true for a value of `replay` without goals of rlkit's own."""
    return replay != "hindsight"


class AgentConfig(base.Config):
    """Static: the optimizer and its schedule, of every agent of this package."""

    optimizer: Annotated[Literal["adam", "adamw", "radam", "rmsprop", "sgd"], OrOwn] = Field(
        default="adam",
        description="adamw: with weight_decay; or module:name, a transformation of optax or a function of the learning "
        "rate that makes one, such as optax:lion",
    )
    learning_rate_schedule: Annotated[Schedule, OrOwn, Unused(optimizer=has_own_rate)] = Field(
        default="constant",
        description="from learning_rate to learning_rate_end within schedule_steps; or module:function of the "
        "environment steps so far, the learning rate",
    )

    def check_hyper(self, hyper: Mapping[str, float | None]) -> None:
        if is_own(schedule := self.learning_rate_schedule):  # before anything is compiled
            jax.eval_shape(
                partial(scheduled, "learning_rate_schedule", schedule), jax.ShapeDtypeStruct((), jnp.float32)
            )
        endless = hyper.get("schedule_steps") == math.inf
        moving = [f"{name}={value!r}" for name in self.schedules if (value := getattr(self, name)) in _FALLING]
        if (fraction := hyper.get("epsilon_fraction")) is not None:
            moving.append(f"epsilon_fraction={fraction:g}")
        if endless and moving:
            raise ConfigError(
                f"{moving[0]} needs schedule_steps, which is infinite, and would change nothing; set schedule_steps to "
                "the environment steps of the run, or give training.make total_steps"
            )
        if self.learning_rate_schedule not in _FALLING and (end := hyper.get("learning_rate_end", 0.0)) != 0.0:
            raise ConfigError(
                f"learning_rate_end={end:g} needs learning_rate_schedule='linear' or 'cosine', and it is "
                f"{self.learning_rate_schedule!r:.80}; set the schedule, or leave learning_rate_end out"
            )
        if self.optimizer != "adamw" and (decay := hyper.get("weight_decay", 0.0)) != 0.0:
            raise ConfigError(
                f"weight_decay={decay:g} needs optimizer='adamw', and it is {self.optimizer!r:.80}; set it"
            )


class HashableDict(dict):
    """A dictionary with a hash, as the fields of a Config need it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def _with_words(value: Any) -> Any:
    """A mapping with words for the indices of a tuple."""
    return {str(k) if type(k) is int else k: v for k, v in value.items()} if isinstance(value, dict) else value


class EncoderConfig(AgentConfig):
    """Static: the network that computes features of an observation."""

    networks: ClassVar[tuple[str, ...]] = ()  # their names, where a user may give some of several

    encoder: Annotated[EncoderName, InNetwork] = Field(
        default="auto",
        description=f"of images: {', '.join(f'{name} ({kind.about})' for name, kind in IMAGES.items())}, or "
        f"{' or '.join(VECTORS)}, which flattens them; auto: nature from 36 pixels a side on, and conv below",
    )
    encoders: Annotated[
        dict[str, LeafEncoderName],
        BeforeValidator(_with_words),
        AfterValidator(HashableDict),
        InNetwork,
    ] = Field(
        default=HashableDict(),
        description="of single leaves of a dict or tuple, by name, in place of encoder: {camera: impala, joints: mlp}; "
        "mlp is a dense layer of the leaf's own, and none joins it as it is",
    )
    image_axes: Literal["auto", "last", "first"] = Field(
        default="auto",
        description="channels of images; auto: first where the leading axis is at most 16 and the smallest",
    )
    hidden_sizes: Annotated[tuple[Width, ...], InNetwork] = Field(
        default=(64, 64), description="dense layers of an encoder"
    )
    channels: Annotated[tuple[Width, ...], InNetwork] = Field(
        default=(16,), description="filters of each convolution of conv, or of each block of resnet"
    )
    kernels: Annotated[tuple[Width, ...], OneOrMore, InNetwork] = Field(
        default=(3,), description="their pixels a side: one number for all layers, or one a layer"
    )
    strides: Annotated[tuple[Width, ...] | None, OneOrMore, InNetwork] = Field(
        default=None,
        description="their steps; null: 2 for images of 32 pixels and more, but for the last layer, and else 1",
    )
    padding: Annotated[Literal["valid", "same"], InNetwork] = Field(
        default="valid", description="of the convolutions of conv"
    )
    norm: Annotated[Literal["none", "layer"], InNetwork] = Field(
        default="none", description="after each convolution of conv"
    )
    activation: Annotated[Activation, InNetwork] = "relu"
    layer_norm: Annotated[bool, InNetwork] = Field(
        default=False, description="after each dense layer; see norm for convolutions"
    )
    compute_dtype: Annotated[Literal["float32", "bfloat16"], InNetwork] = Field(
        default="float32", description="of the encoders; losses stay float32"
    )
    normalize_obs: bool = False


class GaussianPolicyConfig(BaseModel):
    """Static: the standard deviation of a policy for a Box."""

    gsde_log_std: ClassVar[float] = -2.0  # of the exploration matrix at the start, where log_std_init is None

    log_std_init: Annotated[
        float | None,
        Interval(ge=-20.0, le=2.0),
        Unused(**{"action_space": (Discrete, MultiDiscrete), "network": is_own, "network.policy": is_own}),
    ] = Field(
        default=None,
        description="log standard deviation at the start, for a Box; null for 0, or with gsde for -2 in ppo and -3 in "
        "sac, tqc and crossq, as the features add up: at 0 many actions lie at a bound",
    )
    gsde: bool = Field(default=False, description="state-dependent exploration, held over steps, for a Box")
    gsde_steps: Annotated[int, Unused(gsde=False)] = Field(
        default=0, ge=0, lt=2**31, description="steps until its noise is drawn anew; 0 holds it for the episode"
    )

    @property
    def initial_log_std(self) -> float:
        """The log standard deviation of a new policy."""
        if self.log_std_init is not None:
            return self.log_std_init
        return self.gsde_log_std if self.gsde else 0.0


class MemoryConfig(BaseModel):
    """Static: the memory of an agent that may have one."""

    recurrent: MemoryName = Field(
        default="none",
        description="the memory; mingru, lru and s5 learn from all steps of a rollout or a sequence at once",
    )
    memory_size: Annotated[Width, Unused(recurrent="none"), InNetwork] = Field(
        default=64, description="units of the recurrent core"
    )
    memory_layers: Annotated[MemoryLayers, Unused(recurrent="none"), InNetwork] = Field(
        default=1, description="of the recurrent core"
    )


class MinibatchConfig(AgentConfig):
    """Static: how an on-policy agent divides a rollout into minibatches."""

    num_epochs: Count = 4
    num_minibatches: Count = 4
    chunk_size: Count | None = Field(
        default=None,
        description="rows that pass the network at once; null: 8192 on a CPU, else what 1/16 of the memory holds",
    )

    @classmethod
    def run_defaults(cls, task: base.Task) -> dict[str, Any]:
        values = super().run_defaults(task)
        values["learning_rate_schedule"] = "linear"
        if task.images:
            values["num_steps"] = 128
            values |= {"num_envs": 64, "num_minibatches": 32} if task.in_jax else {"total_steps": 10_000_000}
        elif task.in_jax:
            values |= {"num_steps": 64, "num_minibatches": 8}
        else:
            values |= {"num_steps": 256, "num_minibatches": 32}
        return values

    def check_rollout(self, num_envs: int, num_steps: int, devices: int = 1, *, sequences: bool = False) -> None:
        """Raise a ConfigError where a rollout of this size cannot be divided over devices, and into minibatches.

        With `sequences` a minibatch holds environments with all their steps, as recurrent networks need.
        """
        own_envs = _mesh.share("num_envs", num_envs, devices)
        rows, of = (own_envs, "num_envs") if sequences else (own_envs * num_steps, "num_envs * num_steps")
        of += f" / {devices} devices" if devices > 1 else ""
        if rows % self.num_minibatches:
            small = [d for d in range(1, math.isqrt(rows) + 1) if rows % d == 0]
            divisors = sorted({*small, *(rows // d for d in small)})
            below = [d for d in divisors if d < self.num_minibatches][-1:]
            above = [d for d in divisors if d > self.num_minibatches][:1]
            remedy = " or ".join(str(d) for d in below + above)
            raise ConfigError(f"num_minibatches={self.num_minibatches} must divide {of} = {rows}; try {remedy}")


class OffPolicyConfig(AgentConfig):
    """Static: replay buffer and gradient steps of an off-policy agent."""

    capacity: Count = Field(default=100_000, description="steps that the replay buffer holds, of all environments")
    store_obs_once: Annotated[bool, InReplay] = Field(
        default=False,
        description="keep next_obs as the next step's obs: half the memory; truncated steps are drawn only while their "
        "final observation is among the last capacity / 16 (at least 1024), so not for time limits below 16 steps",
    )
    replay_stack: Annotated[Count | None, Unused(replay=stores_whole_obs)] = Field(
        default=None,
        description="frames of an observation of integers or bools, newest last, each of which a replay buffer stores "
        "once; null: those of the wrapper frame_stack, or of atari: and ale:; 1 for whole observations, where episodes "
        "have less than 25 steps on average",
    )
    batch_size: Annotated[Count, InReplay] = Field(default=128, description="items of a gradient step")
    random_shift: Annotated[int, Interval(ge=0, le=1024)] = Field(
        default=0,
        description="pixels by which images of a sample are moved at most, each way, while learning (DrQ: 4); acting "
        "uses them unchanged",
    )
    replay_ratio: Annotated[float, Interval(gt=0.0, le=1e4)] = Field(
        default=1.0, description="gradient steps for each environment step; a whole number for each rollout"
    )
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        default=1000,
        description="environment steps before the first gradient step; until then actions are random, among legal ones",
    )
    target_every: Count | None = Field(
        default=None,
        description="environment steps between updates of the target network, which copy it (tau: 1) unless tau is "
        "given; null for every gradient step",
    )
    replay: Annotated[Literal["uniform", "prioritized", "hindsight"], OrOwn] = Field(
        default="uniform",
        description="hindsight: goals that an episode reached later take the place of its own; or module:function of "
        "this Config that makes a buffer of yours",
    )
    relabel_ratio: Annotated[float, Interval(ge=0.0, le=1.0), Unused(replay=not_hindsight)] = Field(
        default=0.8, description="share of a sample with other goals, of replay: hindsight"
    )
    goal_reward: Annotated[Literal["environment"], OrOwn, Unused(replay=not_hindsight)] = Field(
        default="environment",
        description="its compute_reward; or module:function of the goals achieved and desired: a reward, or (reward, "
        "terminated)",
    )
    alpha: Annotated[float, Interval(ge=0.0, le=10.0), Unused(replay=not_prioritized)] = Field(
        default=0.6, description="exponent of the priorities"
    )
    n_step: Count = Field(default=1, description="rewards in a target before it bootstraps")

    @classmethod
    def run_defaults(cls, task: base.Task) -> dict[str, Any]:
        values = super().run_defaults(task)
        if task.stored:
            return values | {"capacity": 1_000_000}
        if task.images and not task.in_jax:
            values |= {"num_envs": 1, "num_steps": 4, "total_steps": 10_000_000, "learning_starts": 50_000}
            return values | {"batch_size": 32, "replay_ratio": 0.25, "backend": "serial"}
        if task.images:
            values |= {"num_envs": 16, "num_steps": 16, "learning_starts": 5000, "batch_size": 64}
            return values | {"replay_ratio": 0.25, "store_obs_once": True}
        values |= {"total_steps": 100_000, "capacity": 100_000}
        if task.in_jax:
            return values | {"num_envs": 8, "num_steps": 16}
        return values | {"num_envs": 1, "num_steps": 1, "backend": "serial"}

    @property
    def item_length(self) -> int:
        """Consecutive steps of one environment in an item of the replay buffer."""
        return self.n_step

    @property
    def replay_capacity(self) -> int | None:
        return self.capacity

    def check_batch_size(self, devices: int = 1) -> None:
        """Raise a ConfigError where a batch exceeds the replay buffer's steps, or does not divide over the devices."""
        _mesh.share("batch_size", self.batch_size, devices)
        if self.batch_size > self.capacity:
            raise ConfigError(
                f"batch_size={self.batch_size} must be at most capacity={self.capacity}, the steps that the replay "
                f"buffer holds; try {self.capacity}"
            )

    def check_hyper(self, hyper: Mapping[str, float | None]) -> None:
        super().check_hyper(hyper)
        self.check_batch_size()

    def num_gradient_steps(self, num_steps: int) -> int:
        """The number of gradient steps after `num_steps` environment steps of all environments together.

        Raises:
          ConfigError: `replay_ratio * num_steps` is not a whole number.
        """
        count = max(1, round(self.replay_ratio * num_steps))
        nearest = count / num_steps
        if nearest != self.replay_ratio:  # 1/3 is a third: the ratio is the float that is nearest to it
            raise ConfigError(
                f"replay_ratio={self.replay_ratio:g} times num_envs * num_steps = {num_steps} must be a whole number; "
                f"try {nearest!r}, which is {Fraction(count, num_steps)}"
            )
        return count


class QLearningConfig(OffPolicyConfig, EncoderConfig):
    """Static: an off-policy agent with values of discrete actions."""

    @classmethod
    def run_defaults(cls, task: base.Task) -> dict[str, Any]:
        values = super().run_defaults(task)
        if task.stored or task.images:
            return values
        # Layer normalization and rewards of several steps keep the values within what the rewards allow.
        values |= {"total_steps": 200_000, "layer_norm": True, "n_step": 5, "replay_ratio": 0.25}
        values |= {"learning_rate": 5e-4, "learning_rate_schedule": "linear"}
        return values if task.in_jax else values | {"num_steps": 4}


class QCriticConfig(OffPolicyConfig, EncoderConfig):
    """Static: an off-policy agent with a policy and critics of actions."""

    networks: ClassVar[tuple[str, ...]] = ("policy", "critics")

    hidden_sizes: tuple[Width, ...] = Field(default=(256, 256), description="dense layers of an encoder")
    batch_size: Count = Field(default=256, description="items of a gradient step")
    num_critics: NumCritics = Field(default=2, description="of which the least value is taken")

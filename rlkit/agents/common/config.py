"""Fields of `Config` and `Hyper` that several agents have, under the same names and with the same meaning."""

from fractions import Fraction
from typing import Annotated, Any, Literal, Self

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rlkit.ops.schedules import Schedule
from rlkit.types import ConfigError, Scalar

Positive = Annotated[Scalar, Interval(gt=0.0)]
Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]


class AgentConfig(BaseModel):
    """Base of every agent's `Config`: static, hashable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def replay_capacity(self) -> int | None:
        """Steps that the replay buffer holds; None for an agent without one."""
        return None

    def for_overlap(self) -> Self:
        """The config for rollouts that were collected with the parameters of one update before."""
        return self

    def describe_update(self, num_envs: int, num_steps: int) -> dict[str, str]:
        """The sizes of an update after rollouts of `num_steps` in each of `num_envs` environments, as text by title."""
        return {}


class TorsoConfig(AgentConfig):
    """Static: the network that computes features of an observation."""

    torso: Literal["auto", "mlp", "conv"] = Field("auto", description="auto takes conv for one image [H, W, C]")
    hidden_sizes: tuple[PositiveInt, ...] = Field((64, 64), description="dense layers of a torso")
    channels: tuple[PositiveInt, ...] = Field((16,), description="3x3 filters of each convolution")
    activation: Activation = "relu"
    layer_norm: bool = Field(False, description="after each dense layer; convolutions have none")
    compute_dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the torsos; losses stay float32")
    normalize_obs: bool = False


class GaussianPolicyConfig(BaseModel):
    """Static: the standard deviation of a policy for a Box."""

    log_std_init: Annotated[float, Interval(ge=-20.0, le=2.0)] = Field(
        0.0, description="log standard deviation at the start, for a Box"
    )
    gsde: bool = Field(False, description="state-dependent exploration, held over steps, for a Box")
    gsde_steps: int = Field(0, ge=0, description="steps until its noise is drawn anew; 0 holds it for the episode")


class MinibatchConfig(AgentConfig):
    """Static: how an on-policy agent divides a rollout into minibatches."""

    num_epochs: PositiveInt = 4
    num_minibatches: PositiveInt = 4
    chunk_size: PositiveInt | None = Field(8192, description="rows that pass the network at once; null for all")

    @property
    def whole_sequences(self) -> bool:
        """True where a minibatch holds environments with all their steps, as recurrent networks need."""
        return False

    def check_rollout(self, num_envs: int, num_steps: int) -> None:
        """Raise a ConfigError where a rollout of this size cannot be divided into minibatches."""
        rows, of = (num_envs, "num_envs") if self.whole_sequences else (num_envs * num_steps, "num_envs * num_steps")
        if rows % self.num_minibatches:
            divisors = [d for d in range(1, rows + 1) if rows % d == 0]
            below = [d for d in divisors if d < self.num_minibatches][-1:]
            above = [d for d in divisors if d > self.num_minibatches][:1]
            remedy = " or ".join(str(d) for d in below + above)
            raise ConfigError(f"num_minibatches={self.num_minibatches} must divide {of} = {rows}; try {remedy}")

    def describe_update(self, num_envs: int, num_steps: int) -> dict[str, str]:
        rows = (num_envs if self.whole_sequences else num_envs * num_steps) // self.num_minibatches
        items = f"sequences of {num_steps:,} steps" if self.whole_sequences else "steps"
        return {"an update": f"{self.num_epochs:,} epochs of {self.num_minibatches:,} minibatches of {rows:,} {items}"}


class OffPolicyConfig(AgentConfig):
    """Static: replay buffer and gradient steps of an off-policy agent."""

    capacity: PositiveInt = Field(100_000, description="steps that the replay buffer holds, of all environments")
    store_obs_once: bool = Field(False, description="keep next_obs as the next step's obs: half the memory")
    batch_size: PositiveInt = Field(128, description="items of a gradient step")
    replay_ratio: Annotated[float, Interval(gt=0.0, le=1e4)] = Field(
        1.0, description="gradient steps for each environment step; a whole number for each rollout"
    )
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        1000, description="environment steps before the first gradient step"
    )
    target_every: PositiveInt | None = Field(
        None,
        description="environment steps between updates of the target network, which tau=1 copies; null for every "
        "gradient step",
    )
    learning_rate_schedule: Schedule = "constant"
    replay: Literal["uniform", "prioritized"] = "uniform"
    alpha: Annotated[float, Interval(ge=0.0, le=10.0)] = Field(0.6, description="exponent of the priorities")
    n_step: PositiveInt = Field(1, description="rewards in a target before it bootstraps")

    @property
    def item_length(self) -> int:
        """Consecutive steps of one environment in an item of the replay buffer."""
        return self.n_step

    @property
    def replay_capacity(self) -> int | None:
        return self.capacity

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

    def describe_update(self, num_envs: int, num_steps: int) -> dict[str, str]:
        count = self.num_gradient_steps(num_envs * num_steps)
        return {
            "an update": f"{count:,} gradient steps, each from a sample of {self.batch_size:,}",
            "replay buffer": f"the last {self.capacity:,} steps",
        }


class QCriticConfig(OffPolicyConfig, TorsoConfig):
    """Static: an off-policy agent with a policy and critics of actions."""

    hidden_sizes: tuple[PositiveInt, ...] = Field((256, 256), description="dense layers of a torso")
    batch_size: PositiveInt = Field(256, description="items of a gradient step")
    num_critics: PositiveInt = Field(2, description="of which the least value is taken")


class OffPolicyHyper(struct.PyTreeNode):
    """Traced: float32 scalars of every off-policy agent. Infinity switches a term off."""

    learning_rate: Annotated[Scalar, Interval(ge=0.0)] = 3e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    tau: Annotated[Scalar, Interval(gt=0.0, le=1.0), "share of the new parameters in a target update; 1 copies"] = 0.005
    max_grad_norm: Annotated[Scalar, Interval(gt=0.0), "global norm over all parameters of one gradient step"] = jnp.inf
    adam_eps: Annotated[Scalar, Interval(gt=0.0)] = 1e-8
    beta: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, at the start"] = 0.4
    beta_end: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, after schedule_steps"] = 1.0
    schedule_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps that the schedules last"] = jnp.inf


class EpsilonHyper(struct.PyTreeNode):
    """Traced: probability of a random action."""

    epsilon_start: Annotated[Scalar, Interval(ge=0.0, le=1.0), "share of random actions at first"] = 1.0
    epsilon_end: Annotated[Scalar, Interval(ge=0.0, le=1.0), "share of random actions at last"] = 0.05
    epsilon_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps from the one to the other"] = 10_000.0


def as_arrays(hyper: Any) -> Any:
    """An agent's `Hyper` with new float32 arrays [], so that a state that holds it can be donated."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)

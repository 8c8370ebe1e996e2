"""Settings that several agents have, under the same names and with the same meaning."""

from typing import Annotated, Literal

import jax.numpy as jnp
from annotated_types import Interval
from flax import struct
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rlkit.ops.schedules import Schedule
from rlkit.types import Scalar

Positive = Annotated[Scalar, Interval(gt=0.0)]
Activation = Literal["tanh", "relu", "silu", "gelu", "elu"]


class Torso(BaseModel):
    """Static: the network that makes features of an observation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    torso: Literal["auto", "mlp", "conv"] = Field("auto", description="auto takes conv for one image [H, W, C]")
    hidden_sizes: tuple[PositiveInt, ...] = Field((64, 64), description="dense layers of a torso")
    channels: tuple[PositiveInt, ...] = Field((16,), description="3x3 filters of each convolution")
    activation: Activation = "relu"
    layer_norm: bool = Field(False, description="after each dense layer; convolutions have none")
    compute_dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the torsos; losses stay float32")
    normalize_obs: bool = False


class Learning(BaseModel):
    """Static: how much an off-policy agent learns from what it collects."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class Replay(Learning):
    """Static: how items are drawn from the replay buffer."""

    replay: Literal["uniform", "prioritized"] = "uniform"
    alpha: Annotated[float, Interval(ge=0.0, le=10.0)] = Field(0.6, description="how much priorities count")
    n_step: PositiveInt = Field(1, description="rewards in a target before it bootstraps")


class Control(Replay, Torso):
    """Static: an off-policy agent with a policy and critics."""

    hidden_sizes: tuple[PositiveInt, ...] = Field((256, 256), description="dense layers of a torso")
    batch_size: PositiveInt = Field(256, description="items of a gradient step")
    num_critics: PositiveInt = Field(2, description="whose least value counts")


class LearningHyper(struct.PyTreeNode):
    """Traced: float32 scalars of every off-policy agent. Infinity switches a term off."""

    learning_rate: Annotated[Scalar, Interval(ge=0.0)] = 3e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    tau: Annotated[Scalar, Interval(gt=0.0, le=1.0), "share of the new parameters in a target update; 1 copies"] = 0.005
    max_grad_norm: Annotated[Scalar, Interval(gt=0.0), "global norm of what learns in one step, together"] = jnp.inf
    adam_eps: Annotated[Scalar, Interval(gt=0.0)] = 1e-8
    beta: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, at the start"] = 0.4
    beta_end: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, after schedule_steps"] = 1.0
    schedule_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps that the schedules last"] = jnp.inf


class EpsilonHyper(struct.PyTreeNode):
    """Traced: how often an agent takes a random action."""

    epsilon_start: Annotated[Scalar, Interval(ge=0.0, le=1.0), "share of random actions at first"] = 1.0
    epsilon_end: Annotated[Scalar, Interval(ge=0.0, le=1.0), "share of random actions at last"] = 0.05
    epsilon_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps from the one to the other"] = 10_000.0

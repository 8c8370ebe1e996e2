"""Fields of `Hyper` that several agents have, under the same names and with the same meaning."""

from typing import Annotated, Any

import jax.numpy as jnp
from annotated_types import Interval
from flax import struct

from rlkit.agents import base
from rlkit.agents.base import LearningRate, Unused
from rlkit.agents.base.mistakes import UNSET
from rlkit.agents.common.config import not_prioritized
from rlkit.agents.common.own_parts import has_own_rate, is_own
from rlkit.types import Scalar

Positive = Annotated[Scalar, Interval(gt=0.0)]
FinitePositive = Annotated[Scalar, Interval(gt=0.0, lt=jnp.inf)]
Share = Annotated[Scalar, Interval(ge=0.0, le=1.0)]
FiniteNonNegative = Annotated[Scalar, Interval(ge=0.0, lt=jnp.inf)]
OwnRate = Annotated[Scalar | None, Interval(ge=0.0, lt=jnp.inf)]
OwnPartsHaveIt = Unused(optimizer=has_own_rate, learning_rate_schedule=is_own)  # of rates, and of their warm-up


def has_no_eps(optimizer: Any) -> bool:
    """Return true for a value of `optimizer` that does not read adam_eps."""
    return optimizer not in ("adam", "adamw", "radam", "rmsprop")


def value_or(value: Scalar | None, otherwise: Scalar) -> Scalar:
    """Return a field of Hyper, or another value where the field is None, or `UNSET` in the arrays of a state."""
    return otherwise if value is None else jnp.where(jnp.asarray(value) == UNSET, otherwise, value)


class OptimizerHyper(base.Hyper):
    """Traced: float32 scalars of every agent's optimizer and of its schedules. Infinity switches a term off.

    A field that is None is not set: its value follows from other settings, or another field takes its place.
    """

    learning_rate: Annotated[FiniteNonNegative, LearningRate, OwnPartsHaveIt] = 3e-4
    learning_rate_end: Annotated[
        FiniteNonNegative, "after schedule_steps, by learning_rate_schedule", Unused(optimizer=has_own_rate)
    ] = 0.0
    warmup_steps: Annotated[
        FiniteNonNegative,
        "environment steps, from the first gradient step on, in which the learning rate rises from 0",
        OwnPartsHaveIt,
    ] = 0.0
    max_grad_norm: Annotated[Positive, "global norm over all parameters of one gradient step"] = jnp.inf
    weight_decay: Annotated[
        FiniteNonNegative,
        "decoupled weight decay of adamw, of matrices and not of biases",
    ] = 0.0
    adam_eps: Annotated[FinitePositive, "of rmsprop too", Unused(optimizer=has_no_eps)] = 1e-8
    schedule_steps: Annotated[
        Scalar | None, Interval(gt=0.0), "environment steps that the schedules last; null: those of the run"
    ] = None

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        return {"schedule_steps": jnp.inf}


class OffPolicyHyper(OptimizerHyper):
    """Traced: float32 scalars of every off-policy agent. Infinity switches a term off."""

    gamma: Annotated[Share, "discount per step"] = 0.99
    tau: Annotated[
        Scalar | None,
        Interval(gt=0.0, le=1.0),
        "share of the new parameters in a target update; null: 0.005, or 1 (a copy) with target_every",
    ] = None
    beta: Annotated[FiniteNonNegative, "of prioritized replay, at the start", Unused(replay=not_prioritized)] = 0.4
    beta_end: Annotated[
        FiniteNonNegative,
        "of prioritized replay, after schedule_steps; beta stays where those are infinite",
        Unused(replay=not_prioritized),
    ] = 1.0

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        return super().defaults(config, num_envs) | {"tau": 1.0 if config.target_every else 0.005}


class ActorCriticHyper(OffPolicyHyper):
    """Traced: learning rates and clip norms of a policy and of critics, apart."""

    actor_learning_rate: Annotated[OwnRate, "of the policy; null: learning_rate", LearningRate, OwnPartsHaveIt] = None
    critic_learning_rate: Annotated[OwnRate, "of the critics; null: learning_rate", LearningRate, OwnPartsHaveIt] = None
    actor_max_grad_norm: Annotated[Positive, "norm of the policy's gradient alone, beside max_grad_norm"] = jnp.inf
    critic_max_grad_norm: Annotated[Positive, "norm of the critics' gradient alone, beside max_grad_norm"] = jnp.inf


class EpsilonHyper(struct.PyTreeNode):
    """Traced: probability of a random action."""

    epsilon_start: Annotated[Share, "share of random actions at first", Unused(noisy=True)] = 1.0
    epsilon_end: Annotated[Share, "share of random actions at last", Unused(noisy=True)] = 0.05
    epsilon_steps: Annotated[
        Scalar,
        Interval(gt=0.0),
        "environment steps from the one to the other",
        Unused(epsilon_fraction=float, noisy=True),
    ] = 10_000.0
    epsilon_fraction: Annotated[
        Scalar | None,
        Interval(gt=0.0, lt=jnp.inf),
        "share of schedule_steps in which it falls; null: epsilon_steps",
        Unused(noisy=True),
    ] = None

"""Fields of `Hyper` that several agents have, under the same names and with the same meaning."""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct

from rlkit.agents.common import mistakes
from rlkit.agents.common.config import AgentConfig
from rlkit.types import ConfigError, Scalar

Positive = Annotated[Scalar, Interval(gt=0.0)]
FinitePositive = Annotated[Scalar, Interval(gt=0.0, lt=jnp.inf)]
Share = Annotated[Scalar, Interval(ge=0.0, le=1.0)]
FiniteNonNegative = Annotated[Scalar, Interval(ge=0.0, lt=jnp.inf)]


class _OneLineErrors(type):
    """Metaclass whose classes raise a ConfigError where they are called with a name that is no field of theirs."""

    if not TYPE_CHECKING:

        def __call__(cls, *args, **kwargs):
            for name in kwargs:
                if name not in (known := cls.__dataclass_fields__):
                    raise ConfigError(mistakes.unknown_field(name, cls, known))
            return super().__call__(*args, **kwargs)


class OptimizerHyper(struct.PyTreeNode, metaclass=_OneLineErrors):
    """Traced: float32 scalars of every agent's optimizer and of its schedules. Infinity switches a term off."""

    # Fields that `init` alone reads, as the state has a value of its own that learning changes.
    start_values = ()
    learning_rates = ("learning_rate",)  # fields that the schedule and the warm-up scale

    learning_rate: FiniteNonNegative = 3e-4
    learning_rate_end: Annotated[FiniteNonNegative, "after schedule_steps, by learning_rate_schedule"] = 0.0
    warmup_steps: Annotated[
        FiniteNonNegative, "environment steps, from the first gradient step on, in which the learning rate rises from 0"
    ] = 0.0
    max_grad_norm: Annotated[Positive, "global norm over all parameters of one gradient step"] = jnp.inf
    weight_decay: Annotated[
        FiniteNonNegative,
        "decoupled weight decay of adamw, of matrices and not of biases",
    ] = 0.0
    adam_eps: Annotated[FinitePositive, "of rmsprop too"] = 1e-8
    schedule_steps: Annotated[
        Positive, "environment steps that the schedules last; those of the run where not given"
    ] = jnp.inf

    def __post_init__(self) -> None:
        """Raise a ConfigError where a float is out of range."""
        mistakes.check_floats(self)

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        """Values of the fields that are infinite where they are not given, because they depend on other settings."""
        return {}


class OffPolicyHyper(OptimizerHyper):
    """Traced: float32 scalars of every off-policy agent. Infinity switches a term off."""

    gamma: Annotated[Share, "discount per step"] = 0.99
    tau: Annotated[
        Scalar,
        Interval(gt=0.0, le=1.0),
        "share of the new parameters in a target update; by default 0.005, or 1 (a copy) with target_every",
    ] = jnp.inf
    beta: Annotated[FiniteNonNegative, "of prioritized replay, at the start"] = 0.4
    beta_end: Annotated[
        FiniteNonNegative, "of prioritized replay, after schedule_steps; beta stays where those are infinite"
    ] = 1.0

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        return super().defaults(config, num_envs) | {"tau": 1.0 if config.target_every else 0.005}


class ActorCriticHyper(OffPolicyHyper):
    """Traced: learning rates and clip norms of a policy and of critics, apart."""

    learning_rates = (*OffPolicyHyper.learning_rates, "actor_learning_rate", "critic_learning_rate")

    actor_learning_rate: Annotated[Scalar, Interval(ge=0.0), "of the policy; infinity: learning_rate"] = jnp.inf
    critic_learning_rate: Annotated[Scalar, Interval(ge=0.0), "of the critics; infinity: learning_rate"] = jnp.inf
    actor_max_grad_norm: Annotated[Positive, "norm of the policy's gradient alone, beside max_grad_norm"] = jnp.inf
    critic_max_grad_norm: Annotated[Positive, "norm of the critics' gradient alone, beside max_grad_norm"] = jnp.inf


class EpsilonHyper(struct.PyTreeNode):
    """Traced: probability of a random action."""

    epsilon_start: Annotated[Share, "share of random actions at first"] = 1.0
    epsilon_end: Annotated[Share, "share of random actions at last"] = 0.05
    epsilon_steps: Annotated[Scalar, Interval(gt=0.0), "environment steps from the one to the other"] = 10_000.0
    epsilon_fraction: Annotated[
        Scalar, Interval(gt=0.0), "share of schedule_steps in which it falls, in place of epsilon_steps; infinity: off"
    ] = jnp.inf


def as_arrays(hyper: Any, config: AgentConfig, num_envs: int) -> Any:
    """An agent's `Hyper` with new float32 arrays [], so that a state that holds it can be donated.

    Fields that depend on other settings where they are not given get their values.

    Raises:
      ConfigError: a value that is not traced is out of range, or has no effect or no meaning with the static settings;
        or `hyper` is that of another agent.
    """
    mistakes.check_hyper(config, hyper)
    known = _known(hyper)
    mistakes.check_values(hyper, known)
    config.check_hyper(known)
    arrays = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)
    given = {
        name: jnp.where(jnp.isinf(getattr(arrays, name)), jnp.float32(default), getattr(arrays, name))
        for name, default in hyper.defaults(config, num_envs).items()
    }
    return arrays.replace(**given)


def _known(hyper: Any) -> dict[str, float]:
    """The values of a `Hyper` that are not traced, by name."""
    known = {}
    for field in fields(hyper):
        value = getattr(hyper, field.name)
        try:
            known[field.name] = float(value)
        except ValueError:
            raise ConfigError(f"{field.name}={value!r} must be a number; give one") from None
        except TypeError:  # of a value that is traced
            continue
    return known

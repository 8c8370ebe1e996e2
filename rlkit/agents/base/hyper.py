"""The base of an agent's `Hyper`, its traced scalars."""

from dataclasses import fields
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.agents.base import mistakes
from rlkit.agents.base.config import Config
from rlkit.agents.base.mistakes import UNSET
from rlkit.types import ConfigError


class Hyper(struct.PyTreeNode):
    """Base of an agent's scalars that are traced, so that a vmap may sweep them and a run may change them.

    A field is declared with its range, a text that `--help` shows, and its default:
    `gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99`. Values are floats, or arrays
    where a vmap sweeps them. A field that is None is not set: `defaults` has its value, or another field takes its
    place.
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """Raise a ConfigError for a name that is no field."""
        for name in fields:
            if name not in cls.__dataclass_fields__:
                raise ConfigError(mistakes.unknown_field(name, cls, cls.__dataclass_fields__))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raise a ConfigError for text or a float out of range; arrays, integers and None may be axes of a vmap."""
        values = {k: float(x) if isinstance(x, np.floating) else x for k, x in vars(self).items()}
        mistakes.check_values(self, {k: x for k, x in values.items() if isinstance(x, float | str | bytes)})

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        """Return values of fields that are None where they are not given, because they depend on other settings."""
        return {}


def as_arrays(hyper: Any, config: Config, num_envs: int) -> Any:
    """An agent's `Hyper` with new float32 arrays [], so that a state that holds it can be donated.

    A field that is None gets its value of `defaults`, or `UNSET` where another field takes its place.

    Raises:
      ConfigError: a value is no scalar; one that is not traced is out of range, or has no effect or no meaning with
        the static settings; or `hyper` is that of another agent.
    """
    mistakes.check_hyper(config, hyper)
    missing = {field.name for field in fields(hyper) if getattr(hyper, field.name) is None}
    defaults = hyper.defaults(config, num_envs)
    hyper = hyper.replace(**{name: defaults[name] for name in missing & defaults.keys()})
    known = _known(hyper)
    mistakes.check_values(hyper, known)
    config.check_hyper(known)
    arrays = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)
    for name, value in vars(arrays).items():
        if np.shape(value):
            raise ConfigError(f"{name} has shape {list(value.shape)}, and must be a scalar; use jax.vmap for several")
    return arrays.replace(**{name: jnp.array(UNSET) for name in missing - defaults.keys()})


def _known(hyper: Any) -> dict[str, Any]:
    """The values of a `Hyper` that are not traced, by name, without those that are unset."""
    known: dict[str, Any] = {}
    for field in fields(hyper):
        value = getattr(hyper, field.name)
        try:
            number = None if value is None else float(value)
        except TypeError:  # of a value that is traced, or of a batch
            continue
        if field.default is not None or number not in (None, UNSET):
            known[field.name] = number
    return known

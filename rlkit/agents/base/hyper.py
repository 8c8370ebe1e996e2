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
        """Raise a ConfigError for a name that is no field, and for text as a value."""
        for name, value in fields.items():
            if name not in cls.__dataclass_fields__:
                raise ConfigError(mistakes.unknown_field(name, cls, cls.__dataclass_fields__))
            if isinstance(value, str | bytes):
                raise ConfigError(f"{name}={value!r:.40} must be a number, without quotes")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raise a ConfigError where a float is out of range; arrays, whole numbers and None may be axes of a vmap."""
        mistakes.check_values(self, {k: float(x) for k, x in vars(self).items() if isinstance(x, float | np.floating)})

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        """Return values of fields that are None where they are not given, because they depend on other settings."""
        return {}


def as_arrays(hyper: Any, config: Config, num_envs: int) -> Any:
    """An agent's `Hyper` with new float32 arrays [], so that a state that holds it can be donated.

    A field that is None gets its value of `defaults`, or `UNSET` where another field takes its place.

    Raises:
      ConfigError: a value that is not traced is out of range, or has no effect or no meaning with the static settings;
        or `hyper` is that of another agent.
    """
    mistakes.check_hyper(config, hyper)
    missing = {field.name for field in fields(hyper) if getattr(hyper, field.name) is None}
    for field in fields(hyper):
        if field.name in missing and field.default is not None:
            raise ConfigError(f"{field.name}=None must be a number; the default is {field.default:g}")
    defaults = hyper.defaults(config, num_envs)
    hyper = hyper.replace(**{name: defaults[name] for name in missing & defaults.keys()})
    known = _known(hyper)
    mistakes.check_values(hyper, known)
    config.check_hyper(known)
    arrays = jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper)
    return arrays.replace(**{name: jnp.array(UNSET) for name in missing - defaults.keys()})


def _known(hyper: Any) -> dict[str, float]:
    """The values of a `Hyper` that are set and not traced, by name."""
    known = {}
    for field in fields(hyper):
        value = getattr(hyper, field.name)
        if value is None:
            continue
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"{field.name}={value!r} must be a number; give one") from None
        except TypeError:  # of a value that is traced, or of a batch
            continue
        if field.default is not None or number != UNSET:
            known[field.name] = number
    return known

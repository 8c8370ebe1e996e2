"""Flags of episode ends in steps of any structure: named tuples, dataclasses, or dicts with these two fields."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from rlkit.types import Array, ConfigError, PyTree

_NAMES = ("terminated", "truncated")


def flags(steps: PyTree) -> tuple[Array, Array]:
    """Return the terminated and the truncated flags of steps."""
    terminated, truncated = (steps[name] if isinstance(steps, dict) else getattr(steps, name) for name in _NAMES)
    return terminated, truncated


def with_truncated(steps: Any, truncated: Array) -> Any:
    """Return the steps with other truncated flags."""
    if isinstance(steps, dict):
        return steps | {"truncated": truncated}
    if dataclasses.is_dataclass(steps) and not isinstance(steps, type):
        return dataclasses.replace(steps, truncated=truncated)
    return steps._replace(truncated=truncated)  # type: ignore[union-attr]


def check_flags(example: PyTree, purpose: str) -> None:
    """Raise ConfigError unless a step has both flags, bool []."""
    fields = example if isinstance(example, dict) else dir(example)
    missing = [name for name in _NAMES if name not in fields]
    if missing:
        raise ConfigError(
            f"example={type(example).__name__} lacks {' and '.join(missing)}, which {purpose} need; add them, or store "
            "single steps in replay.uniform"
        )
    for name, flag in zip(_NAMES, flags(example), strict=True):
        if jnp.asarray(flag).dtype != jnp.bool_ or jnp.shape(flag) != ():
            raise ConfigError(f"example.{name}={flag!r:.40} must be a bool [], True where the episode ends")

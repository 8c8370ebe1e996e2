"""Ranges of hyper-parameters, from which a population draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from rlkit.agents import base
from rlkit.agents.base.keys import StartOnly, marked
from rlkit.agents.base.mistakes import check_values
from rlkit.names import did_you_mean
from rlkit.types import ConfigError


class Range(NamedTuple):
    """Values that one field of Hyper may have, ends included."""

    low: float
    high: float
    scale: str | None = None  # of draws, log or uniform; None: log where low is above 0, else uniform


Ranges = Mapping[str, Sequence[Any]]  # by field of Hyper: a Range, or a list (low, high) or (low, high, scale)


def check_ranges(hyper: Any, ranges: Ranges) -> dict[str, Range]:
    """Return the ranges in the order of their names, with their scales.

    Args:
      hyper: a `Hyper`.
      ranges: by its fields.

    Raises:
      ConfigError: a range has no meaning, or an end that its field must not have, or its key is not a field of Hyper
        that learning reads.
    """
    known = [field.name for field in fields(hyper)]
    for name in marked(type(hyper), StartOnly):
        if name in ranges:
            raise ConfigError(
                f"ranges.{name}={ranges[name]!r:.80} must not be given, as {name} sets the start of a value that the "
                "state keeps, and would change nothing later; leave it out"
            )
    if not ranges:
        raise ConfigError("ranges={} must name a field of Hyper; try {'learning_rate': (1e-5, 1e-2)}")
    checked = {name: _check_range(name, ranges[name], known) for name in sorted(ranges)}
    for end in ("low", "high") if isinstance(hyper, base.Hyper) else ():  # another one states no limits
        try:
            check_values(hyper, {name: getattr(values, end) for name, values in checked.items()})
        except ConfigError as error:
            raise ConfigError(f"ranges.{error}") from None
    return checked


def _check_range(name: str, values: Any, known: list[str]) -> Range:
    """A range with its scale. Raises ConfigError where it has no meaning."""
    shown = f"ranges.{name:.60}={values!r:.80}"
    if name not in known:
        remedy = did_you_mean(name, known) or f"; it has {', '.join(known)}"
        raise ConfigError(f"{shown} must be of a field of Hyper, and this agent's has none of that name{remedy}")
    parts: list[Any] = list(values) if isinstance(values, list | tuple) else []
    if len(parts) not in (2, 3) or not all(type(end) in (int, float) for end in parts[:2]):
        raise ConfigError(f"{shown} must be a lowest and a highest value, and perhaps a scale; try (1e-5, 1e-2, 'log')")
    greatest = float(np.finfo(np.float32).max)
    if not (-greatest <= parts[0] < parts[1] <= greatest and np.float32(parts[0]) < np.float32(parts[1])):
        raise ConfigError(f"{shown} must go from a finite float32 up to a greater one; try (1e-5, 1e-2)")
    low, high, scale = float(parts[0]), float(parts[1]), parts[2] if len(parts) == 3 else None
    scale = ("log" if low > 0 else "uniform") if scale is None else scale
    if scale not in ("log", "uniform"):
        raise ConfigError(f"{shown} must have the scale 'log' or 'uniform'; leave it out for log where low is positive")
    if scale == "log" and low <= 0:
        raise ConfigError(f"{shown} must begin above 0 on a log scale; try the scale 'uniform'")
    return Range(low, high, scale)

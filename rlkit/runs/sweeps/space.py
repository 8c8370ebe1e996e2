"""The values that a sweep tries for a key: a list, or a range on a linear, a logarithmic or a whole-number scale."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs.config.errors import show_key, show_value
from rlkit.types import ConfigError

KINDS = ("values", "uniform", "log_uniform", "integers")
_EXAMPLE = "write e.g. {log_uniform: [1.0e-4, 1.0e-2]}, {uniform: [0, 1]}, {integers: [1, 8]} or {values: [a, b]}"


class Dimension(NamedTuple):
    """The values that a key may have."""

    kind: str  # of KINDS
    values: tuple[Any, ...] = ()  # of a list
    low: float = math.nan  # of a range, included
    high: float = math.nan
    points: int | None = None  # of a range in a grid

    def at(self, share: float) -> Any:
        """Return the value at a share in [0, 1) of the list or range."""
        if self.kind == "values":
            return self.values[int(share * len(self.values))]
        if self.kind == "integers":
            return int(self.low + math.floor(share * (self.high - self.low + 1)))
        if self.kind == "log_uniform":
            return rounded(math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low))))
        return rounded(self.low + share * (self.high - self.low))

    def grid(self, key: str) -> list[Any]:
        """Return the values of a grid.

        Raises:
          ConfigError: a range has no number of points.
        """
        if self.kind == "values":
            return list(self.values)
        if self.points is None and self.kind == "integers":
            return list(range(int(self.low), int(self.high) + 1))
        if self.points is None:
            raise ConfigError(
                f"{show_key(key)} needs a number of points in a grid; write {{{self.kind}: [{self.low:g}, "
                f"{self.high:g}, 5]}}, or sampler: random"
            )
        if self.kind == "log_uniform":
            points = np.geomspace(self.low, self.high, self.points).tolist()
        else:
            points = np.linspace(self.low, self.high, self.points).tolist()
        return list(dict.fromkeys(map(round if self.kind == "integers" else rounded, points)))

    def ends(self) -> list[Any]:
        """Return values of which all are valid if the dimension is: the list, or the ends of the range."""
        if self.kind == "values":
            return list(self.values)
        return [int(self.low), int(self.high)] if self.kind == "integers" else [self.low, self.high]


def rounded(value: float) -> float:
    """Return a number with six digits, as tables and configs show it."""
    return float(f"{value:.6g}")


def _as_key(value: Any) -> str:
    """Text that equal values share: 1 and 1.0, but not true."""
    if isinstance(value, list | tuple):
        return str([_as_key(item) for item in value])
    return repr(float(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def is_dimension(value: Any) -> bool:
    """Return True for a mapping that names values to try."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in KINDS


def parse_dimension(key: str, value: Mapping[str, Any]) -> Dimension:
    """Return the dimension that a config describes.

    Args:
      key: of the config, for errors.
      value: such as {log_uniform: [1e-4, 1e-2]}; a third number is the points of a grid.

    Raises:
      ConfigError: it is not of this form, or an end is out of order.
    """
    ((kind, items),) = value.items()
    shown = f"{show_key(key)}={{{kind}: {show_value(items)}}}"
    if not isinstance(items, list | tuple) or not items:
        raise ConfigError(f"{shown} must hold a list; {_EXAMPLE}")
    if kind == "values":
        unique: dict[str, Any] = {}
        for item in items:
            unique.setdefault(_as_key(item), item)
        return Dimension("values", values=tuple(unique.values()))
    numbers = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    if len(items) not in (2, 3) or len(numbers) < len(items) or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{shown} must hold two finite numbers, the ends, and for a grid the number of points")
    low, high, *points = numbers
    if not low < high:
        raise ConfigError(f"{shown} must begin with the smaller end; write [{high:g}, {low:g}]")
    if kind == "log_uniform" and low <= 0:
        raise ConfigError(f"{shown} must have ends above 0, as it is on a logarithmic scale; try uniform")
    if kind == "integers" and not all(float(number).is_integer() for number in (low, high)):
        raise ConfigError(f"{shown} must have whole numbers as its ends; round them")
    if points and not (isinstance(points[0], int) and 2 <= points[0] <= 10_000):
        raise ConfigError(f"{shown} must have 2 to 10000 points in a grid")
    return Dimension(kind, low=float(low), high=float(high), points=int(points[0]) if points else None)

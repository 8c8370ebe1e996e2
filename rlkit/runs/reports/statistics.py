"""Statistics of a report that compare runs by the returns of their seeds, and curves of few points."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

_RESAMPLES = 2000
_TAILS = (2.5, 97.5)  # percentiles, of a 95% interval


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the performance profile of a run, the share of its seeds above each score (Agarwal et al. 2021, eq. 2).

    Args:
      scores: [S] float, one a seed.
      thresholds: [K] float.

    Returns:
      share, low, high: [K] float each, the share and its pointwise 95% bootstrap interval over seeds.
    """
    above = (scores[:, None] > thresholds).astype(np.float64)
    shares = _resampled(np.random.default_rng(0), scores.size) @ above / scores.size
    low, high = np.percentile(shares, _TAILS, axis=0)
    return above.mean(0), low, high


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Compute the probability that a seed of x scores more than one of y (Agarwal et al. 2021, eq. 3).

    Equal scores count one half.

    Args:
      x: [S] float, scores of one run.
      y: [R] float, scores of the other run, on the same task.

    Returns:
      The probability, and the ends of its 95% bootstrap interval over the seeds of both.
    """
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
    generator = np.random.default_rng(0)
    of_x, of_y = (_resampled(generator, scores.size) for scores in (x, y))
    low, high = np.percentile(np.sum(of_x @ wins * of_y, axis=1) / wins.size, _TAILS)
    return float(wins.mean()), float(low), float(high)


def _resampled(generator: np.random.Generator, size: int) -> np.ndarray:
    """The counts of `size` values in bootstrap samples, [_RESAMPLES, size] int."""
    return generator.multinomial(size, np.full(size, 1.0 / size), _RESAMPLES)


def bins(length: int, count: int) -> list[slice]:
    """Divide `length` points in at most `count` parts of nearly equal length, in order."""
    ends = np.unique(np.linspace(0, length, min(length, count) + 1).astype(int))
    return [slice(begin, end) for begin, end in pairwise(ends.tolist())]


def finite(values: Iterable[Any]) -> list[float]:
    """Return the finite numbers among values; None and texts are none."""
    return [float(x) for x in values if isinstance(x, int | float) and abs(x) < 1e300]


def json_numbers(values: Any) -> list[float | None]:
    """Return numbers with five digits for JSON; None for one that is not finite."""
    return [float(f"{x:.5g}") if math.isfinite(x) else None for x in np.asarray(values, np.float64).tolist()]

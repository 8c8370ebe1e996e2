"""Observations whose variation float32 would round away, such as the seconds of a clock: 1.7e9 and a little more."""

from typing import Any

import numpy as np

from rlkit.types import ConfigError

_LARGE = 8192.0  # from here on float32 has steps of 0.001; below, a number of several may be constant but for rounding
_ROUNDING = 1e-12  # relative to a number: variation that float64 itself does not hold reliably


def is_rounded(dtype: np.dtype) -> bool:
    """Return true for dtypes with numbers that float32 rounds."""
    return dtype.kind in "fiu" and dtype.itemsize >= (8 if dtype.kind == "f" else 4)


def check(subject: str, values: Any, *, share: float) -> None:
    """Check that float32 keeps the variation of observations; constant ones are fine.

    Args:
      subject: name of the environment or dataset and the leaf, as it begins the message.
      values: [S, ...] float64 or integers.
      share: the most that a rounding step of float32 may be of a number's standard deviation.

    Raises:
      ConfigError: a large number varies by less than float32 keeps, or no number of a leaf varies enough.
    """
    values = values.reshape(len(values), -1)
    low, high = (x.astype(np.float64) for x in (values.min(0), values.max(0)))
    most = np.maximum(np.abs(low), np.abs(high))
    exact = most <= 2.0**24 if values.dtype.kind in "iu" else np.zeros(most.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        span = high - low
    varies = np.isfinite(span) & (span > _ROUNDING * most)
    step = np.spacing(np.minimum(most, 1e38).astype(np.float32)).astype(np.float64)
    doubtful = np.flatnonzero(varies & ~exact & (step > share * span / 4))  # most others need no standard deviation
    if not doubtful.size:
        return
    spread = span / 2
    spread[doubtful] = [np.std(values[:, i].astype(np.float64) - low[i]) for i in doubtful]
    lost = varies & ~exact & (most >= _LARGE) & (step > share * spread)
    if np.all(~varies | (~exact & (step > spread))):
        lost = varies
    for i in np.flatnonzero(lost)[:1].tolist():
        entry = f"[{i}]" if values.shape[1] > 1 else ""
        raise ConfigError(
            f"{subject}{entry} is near {low[i]:.6g} and varies by {spread[i]:.3g}, and float32 rounds it to multiples "
            f"of {step[i]:.3g}; subtract the offset {low[i]:.6g} in the environment, for example by a wrapper"
        )

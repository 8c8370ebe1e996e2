"""Pure functions on arrays: no state, no environment, no network. Each module can be used alone."""

from rlkit.ops import (
    chunked,
    distributional,
    distributions,
    images,
    losses,
    permutation,
    returns,
    schedules,
    statistics,
    windows,
)

__all__ = [
    "chunked",
    "distributional",
    "distributions",
    "images",
    "losses",
    "permutation",
    "returns",
    "schedules",
    "statistics",
    "windows",
]

"""Pure functions on arrays: no state, no environment, no network. Each module can be used alone."""

from rlkit.ops import (
    chunked,
    distributional,
    distributions,
    keys,
    losses,
    permutation,
    returns,
    schedules,
    segment_tree,
    slice_index,
    statistics,
    windows,
)

__all__ = [
    "chunked",
    "distributional",
    "distributions",
    "keys",
    "losses",
    "permutation",
    "returns",
    "schedules",
    "segment_tree",
    "slice_index",
    "statistics",
    "windows",
]

"""What must hold in the state of a buffer, for notebooks and tests."""

from typing import Any

import jax
import numpy as np

from rlkit.ops import segment_tree, slice_index
from rlkit.ops.slice_index import SliceIndex
from rlkit.replay.finals import Finals
from rlkit.replay.priorities import Priorities
from rlkit.replay.ring import Ring


def check(state: Any) -> None:
    """Verify every invariant of a buffer's state, outside of jit; it takes time in proportion to the capacity.

    Args:
      state: of `uniform`, `prioritized` or `slices`, without batch axes.

    Raises:
      ValueError: an invariant does not hold; the message names it and the values.
    """
    state = jax.device_get(state)
    _check_ring(state.ring)
    if not isinstance(getattr(state, "index", ()), tuple):
        slice_index.check(state.index)
        _check_index(state.ring, state.index)
    if not isinstance(getattr(state, "priorities", ()), tuple):
        _check_priorities(state.ring, state.priorities)
        _require(np.isfinite(state.beta) and state.beta >= 0, f"beta={state.beta} must be finite and at least 0")


def _require(holds: Any, message: str) -> None:
    if not holds:
        raise ValueError(message)


def _check_ring(ring: Ring) -> None:
    num_rows, num_envs = ring.num_rows, ring.num_envs
    _require(0 <= ring.slot < num_rows, f"ring.slot={ring.slot} must lie in [0, {num_rows})")
    _require(0 <= ring.count <= num_rows, f"ring.count={ring.count} must lie in [0, {num_rows}]")
    if ring.count < num_rows:
        _require(
            ring.slot == ring.count, f"ring.slot={ring.slot} must be ring.count={ring.count} until the ring is full"
        )
        _require(ring.row == ring.count, f"ring.row={ring.row} must be ring.count={ring.count} until the ring is full")
    for path, leaf in jax.tree_util.tree_leaves_with_path(ring.steps):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        _require(
            leaf.shape[:2] == (num_rows, num_envs),
            f"ring.steps.{name} is {leaf.shape}, not [{num_rows}, {num_envs}, ...]",
        )
    if isinstance(ring.finals, Finals):
        stored = _stored(ring)
        cut = stored & ring.steps.truncated & ~ring.steps.terminated
        ages = (ring.finals.count - ring.finals.number)[cut]
        _require(np.all(ages >= 1), "finals.number of a truncated step lies beyond finals.count")
        _require(np.unique(ages).size == ages.size, "two truncated steps share one final observation")


def _stored(ring: Ring) -> np.ndarray:
    """[R, N] bool, the places that hold a step."""
    return np.broadcast_to(np.arange(ring.num_rows)[:, None] < ring.count, (ring.num_rows, ring.num_envs))


def _check_priorities(ring: Ring, priorities: Priorities) -> None:
    segment_tree.check(priorities.mass)
    mass = np.asarray(segment_tree.values(priorities.mass)).reshape(ring.num_rows, ring.num_envs)
    _require(not np.any(mass[~_stored(ring)]), "a place without a step has mass and could be drawn")


def _check_index(ring: Ring, index: SliceIndex) -> None:
    counts = (index.ring.head, index.ring.slot, index.ring.rows)
    expected = (ring.row, ring.slot, ring.count)
    _require(counts == expected, f"the index is at (row, slot, count) {counts}, and the ring at {expected}")

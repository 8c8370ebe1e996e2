"""What the state of every replay buffer holds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from index_invariants import check_index
from tree_invariants import check_tree

from rlkit.replay import packing, segment_tree, slice_index
from rlkit.replay.final_observations import FinalObservations
from rlkit.replay.flags import flags
from rlkit.replay.priorities import Priorities
from rlkit.replay.slice_index import SliceIndex
from rlkit.replay.slice_index.sampling import start_of
from rlkit.replay.storage import Ring


def check_buffer(state: Any) -> None:
    """Verify every invariant of a buffer's state, outside of jit, in time proportional to the capacity.

    Slices must begin exactly where the stored flags allow it, and no other step may have mass. The state of
    `prioritized` does not hold the length of its windows: there, every step that has mass must be stored.

    Args:
      state: of `uniform`, `prioritized` or `slices`, without batch axes.

    Raises:
      ValueError: an invariant does not hold; the message names it and the values.
    """
    state = jax.device_get(state)
    _check_ring(state.ring)
    drawable = _stored(state.ring)
    if not isinstance(getattr(state, "index", ()), tuple):
        check_index(state.index)
        drawable = _check_index(state.ring, state.index)
    if not isinstance(getattr(state, "priorities", ()), tuple):
        _check_priorities(state.ring, state.priorities, drawable)
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
    for name, leaf, expected in packing.shapes(ring.stored, num_rows, num_envs):
        _require(leaf.shape == expected, f"ring.stored.{name} is {list(leaf.shape)}, not {list(expected)}")
    if isinstance(ring.final_obs, FinalObservations):
        stored = _stored(ring)
        steps = ring.steps
        truncated = stored & np.asarray(steps.truncated & ~steps.terminated)
        count = ring.final_obs.count
        ages = (count - ring.final_obs.number)[truncated]
        in_range = (ages >= 1) & (ages <= ring.capacity)
        _require(np.all(in_range), f"final_obs.number of a truncated step is not one of the last before {count}")
        _require(np.unique(ages).size == ages.size, "two truncated steps share one final observation")
    stored_obs = jax.tree.leaves(packing.unpack(ring.stored).obs) if ring.frames else ()
    for pool, numbers in zip(ring.frames, stored_obs, strict=True):
        if pool is not None:
            ages = (pool.counts[0] - numbers)[_stored(ring)]
            _require(np.all(ages >= 1) and np.all(ages[:, :-1] >= ages[:, 1:]), "frames of a step are not in order")


def _stored(ring: Ring) -> np.ndarray:
    """Mark the slots and environments that hold a step, [R, N] bool."""
    return np.broadcast_to(np.arange(ring.num_rows)[:, None] < ring.count, (ring.num_rows, ring.num_envs))


def _check_priorities(ring: Ring, priorities: Priorities, drawable: np.ndarray) -> None:
    check_tree(priorities.mass)
    mass = np.asarray(segment_tree.values(priorities.mass)).reshape(ring.num_rows, ring.num_envs)
    for slot, env in np.argwhere((mass > 0) & ~drawable)[:1]:
        _require(
            False, f"slot {slot} of env {env} has mass {mass[slot, env]:g} and could be drawn; no item begins there"
        )


def _check_index(ring: Ring, index: SliceIndex) -> np.ndarray:
    """Compare the index with the stored flags, and mark the steps at which a slice begins, [R, N] bool."""
    counts = (index.ring.head, index.ring.slot, index.ring.rows)
    expected = (ring.head, ring.slot, ring.count)
    _require(counts == expected, f"the index is at (head, slot, count) {counts}, and the ring at {expected}")
    slots = (ring.slot - ring.count + np.arange(int(ring.count))) % ring.num_rows  # from the oldest row to the newest
    terminated, truncated = flags(packing.unpack(ring.stored))
    done = np.asarray(terminated | truncated)[slots]
    begins = np.zeros((ring.num_rows, ring.num_envs), bool)
    begins[slots] = _starts(done, index)
    size = int(slice_index.size(index))
    _require(size == begins.sum(), f"the index counts {size} slices, and the stored flags allow {begins.sum()}")
    if index.sampling == "slice":
        slot, env = map(np.asarray, start_of(index, jnp.arange(size, dtype=jnp.uint32)))
        _require(begins[slot, env].all(), "a slice of the index begins where the stored flags allow none")
    else:
        begins_next = np.concatenate([begins[slots][1:], np.zeros((1, ring.num_envs), bool)])[: len(done)]
        allowed, counted = (begins[slots] & (done | ~begins_next)).sum(), int(slice_index.num_episodes(index))
        _require(counted == allowed, f"the index counts {counted} episodes, and the stored flags allow {allowed}")
    if index.ended is not None:
        _require(np.array_equal(index.ended[slots], done), "index.ended differs from the stored flags")
    return begins


def _starts(done: np.ndarray, index: SliceIndex) -> np.ndarray:
    """Mark the stored steps, oldest row first, at which a slice begins, [C, N] bool."""
    if not index.strict:
        return np.ones_like(done)
    if index.cross_episodes:
        return np.broadcast_to(np.arange(len(done))[:, None] <= len(done) - index.slice_len, done.shape)
    return np.asarray(slice_index.slice_starts_from_done(jnp.asarray(done), index.slice_len))

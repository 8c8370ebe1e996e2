"""Prioritized replay (Schaul et al. 2016): steps, or windows of steps, in proportion to (|TD error| + eps)^alpha."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.ops._arrays import as_arrays, check_key
from rlkit.replay import priorities, segment_tree, storage, validation, windows
from rlkit.replay.flags import check_flags
from rlkit.replay.priorities import Priorities
from rlkit.replay.short_repr import short_repr
from rlkit.replay.storage import Ring
from rlkit.replay.validation import ObsStorage
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, Buffer, Key, PyTree, Sample, StateNode


class PrioritizedState(StateNode):
    """State of a prioritized buffer."""

    ring: Ring  # the stored steps
    priorities: Priorities  # of the items that start at them
    beta: Array  # [] float32, the exponent of the importance weights; anneal it by `state.replace(beta=...)`

    __repr__ = short_repr


class Static(NamedTuple):
    """Arguments that `prioritized` binds."""

    capacity: int
    batch_size: int
    length: int
    obs_storage: ObsStorage
    settings: priorities.Settings
    axis_name: str | None


def prioritized(
    capacity: int,
    batch_size: int,
    *,
    length: int = 1,
    alpha: float = 0.6,
    beta: float = 0.4,
    eps: float = 1e-6,
    start_priority: float = 1.0,
    store_obs_once: bool = False,
    max_final_obs: int | None = None,
    frame_stack: int = 1,
    image_axes: str = "auto",
    axis_name: str | None = None,
) -> Buffer:
    """Return a buffer of the last `capacity` steps, drawn in proportion to (|p| + eps)^alpha of their priorities p.

    `update(state, sample.index, td_error)` sets the priorities of a sample; it skips items that have been overwritten
    since, and priorities that are not finite. A new item gets the largest measured priority that is in the buffer now.
    Samples are stratified: one item from each of B equal parts of the total. Importance weights are (size * P)^-beta,
    divided by the largest weight of all items.

    Args:
      capacity: steps of all environments together, a multiple of their number, below 2^31.
      batch_size: B, items of a sample.
      length: L, rows of an item, for n-step returns; see `uniform`.
      alpha: exponent of the priorities, 0 for uniform draws; fixed, as the tree stores powers.
      beta: initial exponent of the importance weights; the state holds it as an array [].
      eps: constant added to every |priority|, so that each item can be drawn. With 0, items of priority 0 cannot, and
        `size`, which leaves them out, takes time proportional to the capacity.
      start_priority: priority of new items while none has been measured.
      store_obs_once, max_final_obs, frame_stack, image_axes: see `uniform`.
      axis_name: see `uniform`. Each of D devices draws its B / D items from its own: P is 1 / D of the item's share of
        the total on its device. The largest priority and the largest weight are those of all devices.

    Returns:
      `Buffer`. `sample` of an empty buffer raises ValueError outside of jit; inside, all of its mask is False.

    Raises:
      ConfigError: a setting is out of range; at `init`, the capacity does not fit the environments.
    """
    capacity, batch_size, length = validation.sizes(capacity=capacity, batch_size=batch_size, length=length)
    obs_storage = validation.obs_storage(
        store_obs_once=store_obs_once,
        max_final_obs=max_final_obs,
        frame_stack=frame_stack,
        image_axes=image_axes,
        capacity=capacity,
    )
    settings = priorities.Settings(alpha, beta, eps, start_priority)
    static = Static(capacity, batch_size, length, obs_storage, settings, axis_name)
    functions: Any = (init, add, sample, update, size, batch_of_pass)
    return Buffer(*(partial(function, static) for function in functions))


def init(static: Static, example: PyTree, num_envs: int) -> PrioritizedState:
    """Return an empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    if static.length > 1:
        check_flags(example, "windows")
    sizes = static.capacity, num_envs, static.obs_storage
    capacity, num_envs, obs_storage = validation.shard(*sizes, static.axis_name)
    state = PrioritizedState(
        ring=storage.init(example, num_envs, capacity, static.length, obs_storage),
        priorities=priorities.init(capacity, static.settings),
        beta=jnp.float32(static.settings.beta),
    )
    return _mesh.vary(vary_like(state, example), static.axis_name)


def add(static: Static, state: PrioritizedState, rollout: PyTree) -> PrioritizedState:
    """Add a rollout [T, N, ...]: remove the items that it overwrites, then insert those that it completes."""
    state = as_arrays(state)
    ring = storage.add(state.ring, rollout)
    num_rows, num_envs = jax.tree.leaves(rollout)[0].shape[:2]
    overwritten = storage.next_slots(state.ring.cursor, num_rows).astype(jnp.int32)
    completed = windows.completed_windows(state.ring, num_rows, static.length)
    remaining = priorities.remove_rows(state.priorities, overwritten, num_envs)
    inserted = priorities.insert_rows(remaining, completed, num_envs, static.axis_name)
    return state.replace(ring=ring, priorities=inserted)


def sample(static: Static, state: PrioritizedState, key: Key) -> Sample:
    """Draw B items in proportion to their masses: leaves [B, ...], or [B, L, ...] of windows, and weights [B]."""
    state = as_arrays(state)
    check_key(key)
    validation.check_not_empty(size(static, state))
    batch_size = _mesh.share("batch_size", static.batch_size, _mesh.size(static.axis_name))
    place, valid = _draw_places(state, key, batch_size)
    valid &= segment_tree.total(state.priorities.mass) > 0
    weight = priorities.weights(state.priorities, place, state.beta, static.axis_name)
    return windows.take(state.ring, place, weight, valid, static.length if static.length > 1 else None)


# Jitted, because JAX compiles a loop anew whenever it is called outside of jit. Inlined, it changes no jitted program.
@partial(jax.jit, static_argnames="batch_size", inline=True)
def _draw_places(state: PrioritizedState, key: Key, batch_size: int) -> tuple[Place, Array]:
    draw = partial(priorities.draw, state.priorities, batch_size=batch_size, num_envs=state.ring.num_envs)
    return windows.draw_with_next_obs(state.ring, draw, key, 1, partial(draw, stratified=False))


def batch_of_pass(static: Static, state: PrioritizedState, key: Key, k: Array | int) -> Sample:
    """Return batch k of a pass over all items, whatever their priorities; see `Buffer.batch_of_pass`."""
    state = as_arrays(state)
    batch_size = _mesh.share("batch_size", static.batch_size, _mesh.size(static.axis_name))
    return windows.batch_of_pass(state.ring, key, k, batch_size=batch_size, length=static.length)


def update(static: Static, state: PrioritizedState, index: Handle, priority: Array) -> PrioritizedState:
    """Set the priorities of the items of `index` to |priority| [B]; see `priorities.update`."""
    state = as_arrays(state)
    settings = static.settings
    return state.replace(priorities=priorities.update(state.priorities, state.ring, index, priority, settings))


def size(static: Static, state: PrioritizedState) -> Array:
    """Number of items that can be drawn, [] int32."""
    return priorities.num_items(state.priorities, windows.num_windows(state.ring, static.length), static.settings)

"""Prioritized replay (Schaul et al. 2016): steps, or windows of steps, in proportion to (|TD error| + eps)^alpha."""

from functools import partial

import jax.numpy as jnp
from flax import struct

from rlkit.replay import priorities, segment_tree, validation, windows
from rlkit.replay import storage as rings
from rlkit.replay.priorities import Priorities
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle
from rlkit.types import Array, Buffer, Key, Sample, Transition


class PrioritizedState(struct.PyTreeNode):
    """A ring of steps and the priorities of its places."""

    ring: Ring
    priorities: Priorities
    beta: Array  # [] float32, the exponent of the importance weights; anneal it by `state.replace(beta=...)`


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
    max_finals: int | None = None,
) -> Buffer:
    """A buffer of the last `capacity` steps, drawn in proportion to (|p| + eps)^alpha of their priorities p.

    `update(state, sample.index, td_error)` sets the priorities of a sample. A new item has the largest of the
    priorities so set that are in the buffer now. Weights are (size * P)^-beta over the largest of all items. A handle
    of an item that has been overwritten since, or a priority that is not finite, changes nothing. Samples are
    stratified: one of each of B equal parts of the total.

    Args:
      capacity: steps of all environments together, below 2^31, a multiple of their number.
      batch_size: B, items of a sample.
      length: L, rows of a window, for n-step returns; see `uniform`.
      alpha: how much priorities count, 0 for not at all; fixed, for the trees hold powers.
      beta: how much the weights correct for them, at first; the state carries it as an array [].
      eps: what every |priority| is raised by, so that none is never drawn.
      start_priority: of new items while nothing has been measured.
      store_obs_once, max_finals: see `uniform`.

    Returns:
      `Buffer`. `sample` of an empty buffer raises ValueError outside of jit, and has a mask of False inside.

    Raises:
      ConfigError: a setting is out of range; at `init`, the capacity does not fit the environments.
    """
    finals = validation.settings(
        store_obs_once=store_obs_once, max_finals=max_finals, capacity=capacity, batch_size=batch_size, length=length
    )
    priority = priorities.Settings(alpha, beta, eps, start_priority)
    return Buffer(
        init=partial(init, capacity=capacity, length=length, max_finals=finals, priority=priority),
        add=partial(add, length=length),
        sample=partial(sample, batch_size=batch_size, length=length),
        update=partial(update, settings=priority),
        size=partial(size, length=length),
    )


def init(
    example: Transition,
    num_envs: int,
    *,
    capacity: int,
    length: int,
    max_finals: int | None,
    priority: priorities.Settings,
) -> PrioritizedState:
    """An empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    return PrioritizedState(
        ring=rings.init(example, num_envs, capacity, length, max_finals),
        priorities=priorities.init(capacity, priority),
        beta=jnp.float32(priority.beta),
    )


def add(state: PrioritizedState, rollout: Transition, *, length: int) -> PrioritizedState:
    """The buffer after a rollout [T, N, ...]: what it overwrites is forgotten, what it completes is new."""
    num_rows, num_envs = rollout.reward.shape
    forgotten = priorities.forget(state.priorities, rings.next_slots(state.ring, num_rows), num_envs)
    born = windows.slots_completed(state.ring, num_rows, length)
    return state.replace(ring=rings.add(state.ring, rollout), priorities=priorities.renew(forgotten, born, num_envs))


def sample(state: PrioritizedState, key: Key, *, batch_size: int, length: int) -> Sample:
    """B items in proportion to their masses: leaves [B, ...], or [B, L, ...] of windows, and weights [B]."""
    validation.not_empty(size(state, length=length))
    num_envs = state.ring.num_envs
    place, drawn = windows.draw_known(
        state.ring, lambda key: priorities.draw(state.priorities, key, batch_size, num_envs), key, 1
    )
    drawn &= segment_tree.total(state.priorities.mass) > 0
    weight = priorities.weights(state.priorities, place, state.beta)
    return windows.take(state.ring, place, weight, drawn, length if length > 1 else None)


def update(
    state: PrioritizedState, index: Handle, priority: Array, *, settings: priorities.Settings
) -> PrioritizedState:
    """The buffer after |priority| [B] was measured of the items of `index`; see `priorities.update`."""
    return state.replace(priorities=priorities.update(state.priorities, state.ring, index, priority, settings))


def size(state: PrioritizedState, *, length: int) -> Array:
    """How many places can be drawn, [] int32."""
    return windows.num_starts(state.ring, length)

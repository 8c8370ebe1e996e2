"""Draws from a slice index: first steps of slices, the masks of their steps, and their rows."""

import jax
import jax.numpy as jnp

from rlkit.ops._integers import add_mod, uint32, uniform_below
from rlkit.replay import storage
from rlkit.replay.slice_index import row_queue
from rlkit.replay.slice_index.state import SliceIndex, Slices
from rlkit.types import Array, Key, PyTree


def start_of(state: SliceIndex, nth: Array) -> tuple[Array, Array]:
    """Slots and environments, [B] uint32 each, of the first steps of slices; nth [B] uint32, 0 for the oldest."""
    if state.starts is not None:
        return storage.slot_and_env(row_queue.take(state.starts, nth), state.num_envs)
    row, env = storage.slot_and_env(nth, state.num_envs)
    return storage.slot_before_head(state.ring, state.ring.rows - row), env


def has_unfinished_slice(state: SliceIndex) -> Array:
    """Mark the environments whose unfinished episode holds a slice, [N] bool."""
    assert state.age is not None
    return state.age >= state.span


def draw_by_episode(state: SliceIndex, key: Key, num_slices: int) -> tuple[Array, Array]:
    """Draw an episode uniformly and one of its slices uniformly: slots and environments of B first steps, uint32."""
    assert state.episodes is not None
    assert state.age is not None
    episode_key, slice_key = jax.random.split(key)
    num_finished, unfinished = row_queue.size(state.episodes), has_unfinished_slice(state)
    num_episodes = num_finished + jnp.sum(unfinished, dtype=jnp.uint32)
    episode = uniform_below(episode_key, (num_slices,), num_episodes)
    finished = episode < num_finished
    end, length = row_queue.take(state.episodes, jnp.where(finished, episode, 0))
    slot, env = storage.slot_and_env(end, state.num_envs)
    # The unfinished episodes are numbered after the finished ones, by environment; they end in the newest row.
    envs = uint32(jnp.flatnonzero(unfinished, size=state.num_envs, fill_value=0))
    env = jnp.where(finished, env, envs[jnp.where(finished, 0, episode - num_finished)])
    length = jnp.where(finished, length, state.age[env])
    end_distance = jnp.where(finished, storage.distance_to_head(state.ring, slot), 1)
    stored = jnp.minimum(length, state.ring.rows - end_distance + 1)
    stored = jnp.maximum(stored, jnp.uint32(state.span))  # below the span only where there is no episode to draw
    offset = uniform_below(slice_key, (num_slices,), stored - jnp.uint32(state.span - 1))
    return storage.slot_before_head(state.ring, end_distance + stored - 1 - offset), env


def mask_of(state: SliceIndex, slot: Array, env: Array, distance: Array) -> Array:
    """Mark the real steps of slices, [B, L] bool: those up to the end of their episode, or up to the newest row.

    Args:
      state: of slices of length L.
      slot, env: [B] uint32, first steps of the slices.
      distance: [B] uint32, rows from there to the head.
    """
    if state.strict:
        return jnp.ones((*slot.shape, state.slice_len), jnp.bool_)
    step = jnp.arange(state.slice_len, dtype=jnp.uint32)[None]
    length = distance[:, None]
    if state.ended is not None:
        ended = state.ended[add_mod(slot[:, None], step, state.num_rows), env[:, None]]
        # A minimum reads each flag once, where a cumulative sum would read it once for every later step.
        first_end = jnp.min(jnp.where(ended, step, jnp.uint32(state.slice_len)), axis=1, keepdims=True)
        length = jnp.minimum(length, first_end + 1)
    return step < length


def gather(data: PyTree, slices: Slices) -> PyTree:
    """Take the rows of slices from data that is stored as the indexed ring is: row by slot.

    Args:
      data: leaves [R, N, ...]; flat ones, [R * N, ...], as `x.reshape(R, N, ...)`, which copies nothing.
      slices: B slices of L steps of an index [R, N].

    Returns:
      Leaves [B, L, ...]; rows where the mask is False are of other episodes, or not yet stored.

    Raises:
      ValueError: a leaf has fewer than two axes, or the leaves differ in those two.
    """
    leading = {jnp.shape(leaf)[:2] for leaf in jax.tree.leaves(data)}
    if len(leading) != 1 or len(next(iter(leading))) != 2:
        raise ValueError(f"data has leaves with leading axes {sorted(leading)}; give all of them the ring's, [R, N]")
    ((num_rows, _),) = leading
    slots, envs = storage.window_at(slices.slot, slices.env, slices.mask.shape[-1], num_rows)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[slots, envs], data)

"""How a slice index finds the slices that a draw has chosen."""

import jax
import jax.numpy as jnp

from rlkit._cpu.random_bits import straight
from rlkit.ops._integers import add_mod, uint32, uniform_below
from rlkit.replay import cursor
from rlkit.replay.slice_index import row_queue
from rlkit.replay.slice_index.state import SliceIndex
from rlkit.types import Array, Key


def start_of(state: SliceIndex, item: Array) -> tuple[Array, Array]:
    """Slot and environment, [B] uint32, of the start of the item-th oldest slice, item [B] uint32."""
    if state.starts is not None:
        return cursor.split(row_queue.take(state.starts, item), state.num_envs)
    row, env = cursor.split(item, state.num_envs)
    return cursor.slot_of(state.ring, state.ring.rows - row), env


def is_open(state: SliceIndex) -> Array:
    """Which environments have an unfinished episode that holds a slice, [N] bool."""
    assert state.age is not None
    return state.age >= state.span


def draw_by_episode(state: SliceIndex, key: Key, num_slices: int) -> tuple[Array, Array]:
    """Slot and environment, [B] uint32, of the starts of slices under the law "episode"."""
    assert state.episodes is not None
    assert state.age is not None
    episode_key, slice_key = jax.random.split(straight(key))
    finished, unfinished = row_queue.size(state.episodes), is_open(state)
    episode = uniform_below(episode_key, (num_slices,), finished + jnp.sum(unfinished, dtype=jnp.uint32))
    ended = episode < finished
    end, length = row_queue.take(state.episodes, jnp.where(ended, episode, 0))
    slot, env = cursor.split(end, state.num_envs)
    # After the finished episodes come the unfinished, in the order of their environments: they end in the newest row.
    envs = uint32(jnp.flatnonzero(unfinished, size=state.num_envs, fill_value=0))
    env = jnp.where(ended, env, envs[jnp.where(ended, 0, episode - finished)])
    length = jnp.where(ended, length, state.age[env])
    back = jnp.where(ended, cursor.back_of(state.ring, slot), 1)
    stored = jnp.minimum(length, state.ring.rows - back + 1)
    stored = jnp.maximum(stored, jnp.uint32(state.span))  # below the span only where there is no episode to draw
    offset = uniform_below(slice_key, (num_slices,), stored - jnp.uint32(state.span - 1))
    return cursor.slot_of(state.ring, back + stored - 1 - offset), env


def mask_of(state: SliceIndex, slot: Array, env: Array, back: Array) -> Array:
    """Which steps of slices are real, [B, L] bool: up to the end of their episode, or to the newest row.

    Args:
      state: of slices of length L.
      slot, env: [B] uint32, where the slices begin.
      back: [B] uint32, how many rows before the head that is.
    """
    if state.strict:
        return jnp.ones((*slot.shape, state.slice_len), jnp.bool_)
    step = jnp.arange(state.slice_len, dtype=jnp.uint32)[None]
    length = back[:, None]
    if state.ended is not None:
        ended = state.ended[add_mod(slot[:, None], step, state.num_rows), env[:, None]]
        # A minimum reads each flag once; XLA would gather them again for each sum of a cumulative sum.
        first_end = jnp.min(jnp.where(ended, step, jnp.uint32(state.slice_len)), axis=1, keepdims=True)
        length = jnp.minimum(length, first_end + 1)
    return step < length

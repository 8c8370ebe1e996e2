"""Slices that new rows complete, and the lengths of the episodes that they belong to."""

import jax
import jax.numpy as jnp

from rlkit.ops._arrays import check_bools, check_shape
from rlkit.ops._integers import sub_mod
from rlkit.replay import storage
from rlkit.replay.slice_index.state import SliceIndex
from rlkit.types import Array


def episode_lengths(done: Array, age: Array) -> Array:
    """Lengths of the episodes so far, up to and including each step.

    Args:
      done: [T, ...] bool.
      age: [...] uint32, lengths of the unfinished episodes before the first row.

    Returns:
      [T, ...] uint32.
    """
    step = jnp.arange(1, done.shape[0] + 1, dtype=jnp.uint32).reshape(-1, *(1,) * age.ndim)
    last_end = jax.lax.cummax(jnp.where(done, step, jnp.uint32(0)))
    begin = jnp.concatenate([jnp.zeros((1, *age.shape), jnp.uint32), last_end[:-1]])
    return step - begin + jnp.where(begin == 0, age[None], jnp.uint32(0))


def completions(state: SliceIndex, done: Array) -> tuple[Array | None, Array]:
    """Episode lengths so far, R at most, and the steps that complete a slice.

    A slice is completed by its last step, or by its first where the index is not strict. Slices whose first row is
    overwritten by these rows themselves are left out.

    Args:
      state: the index before these rows.
      done: [T, N] bool, 1 <= T <= R.

    Returns:
      [T, N] uint32, or None where the index has no need of lengths; and [T, N] bool.

    Raises:
      ValueError: `done` is not boolean, or not [T, N] with 1 <= T <= R.
    """
    check_bools(done=done)
    num_steps = done.shape[0] if done.ndim else 0
    check_shape("done", done, (num_steps, state.num_envs))
    if not 1 <= num_steps <= state.num_rows:
        raise ValueError(f"done has {num_steps} rows, expected 1 to {state.num_rows}, the ring's; add it in parts")
    # Once added, row i of these T is preceded by rows - T + i stored rows.
    rows = storage.advance(state.ring, num_steps).rows
    has_span = rows + jnp.arange(num_steps, dtype=jnp.uint32) >= num_steps + state.span - 1
    completed = jnp.broadcast_to(has_span[:, None], done.shape)
    if state.age is None:
        return None, completed
    lengths = jnp.minimum(episode_lengths(done, state.age), jnp.uint32(state.num_rows))
    return lengths, completed & (lengths >= state.span)


def start_slots(state: SliceIndex, slots: Array) -> Array:
    """Slots of the first steps of the slices that the rows in `slots` complete, [T] uint32."""
    return sub_mod(slots, jnp.uint32(state.span - 1), state.num_rows)

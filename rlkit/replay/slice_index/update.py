"""Which steps of a chunk of rows bring a slice."""

import jax
import jax.numpy as jnp

from rlkit.ops._arrays import check_bools, check_shape
from rlkit.ops._integers import sub_mod
from rlkit.replay import cursor
from rlkit.replay.slice_index.state import SliceIndex
from rlkit.types import Array


def ages_of(done: Array, age: Array) -> Array:
    """How many steps its episode has with each step, [T, ...] uint32; `age` [...]: before the first row."""
    step = jnp.arange(1, done.shape[0] + 1, dtype=jnp.uint32).reshape(-1, *(1,) * age.ndim)
    last_end = jax.lax.cummax(jnp.where(done, step, jnp.uint32(0)))
    begin = jnp.concatenate([jnp.zeros((1, *age.shape), jnp.uint32), last_end[:-1]])
    return step - begin + jnp.where(begin == 0, age[None], jnp.uint32(0))


def arrivals(state: SliceIndex, done: Array) -> tuple[Array | None, Array]:
    """For each step of a chunk, [T, N]: its episode's length so far, R at most, and whether it brings a slice.

    A slice is brought by its last step, or by its first where the index is not strict. Those that begin in a row which
    the chunk overwrites are left out: they die at once.

    Raises:
      ValueError: done is not boolean, or not [T, N] with 1 <= T <= R.
    """
    check_bools(done=done)
    num_steps = done.shape[0] if done.ndim else 0
    check_shape("done", done, (num_steps, state.num_envs))
    if not 1 <= num_steps <= state.num_rows:
        raise ValueError(f"done has {num_steps} rows, expected 1 to {state.num_rows}, the ring's; add it in parts")
    # In the end the chunk is the newest of the stored rows: its row i has rows - num_steps + i of them before it.
    rows = cursor.advance(state.ring, num_steps).rows
    reach = rows + jnp.arange(num_steps, dtype=jnp.uint32) >= num_steps + state.span - 1
    born = jnp.broadcast_to(reach[:, None], done.shape)
    if state.age is None:
        return None, born
    ages = jnp.minimum(ages_of(done, state.age), jnp.uint32(state.num_rows))
    return ages, born & (ages >= state.span)


def start_slots(state: SliceIndex, slots: Array) -> Array:
    """The slots in which the slices begin that the rows in `slots` bring, [T] uint32."""
    return sub_mod(slots, jnp.uint32(state.span - 1), state.num_rows)


def steps_of(state: SliceIndex, slots: Array) -> Array:
    """The steps of the rows in `slots` [T] uint32, one number each: [T, N] int32."""
    env = jnp.arange(state.num_envs, dtype=jnp.uint32)
    return cursor.join(slots[:, None], env[None], state.num_envs)

"""Observations stored once: next_obs is the next row's obs, but for the newest row and where an episode was cut.

The final observation of a truncated episode is followed by another episode's first, so it is kept in a ring of its own.
"""

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.types import Array, PyTree, Transition


class Finals(struct.PyTreeNode):
    """What next_obs is made of, beside the observations [R, N, ...]. Numbers are modulo 2^32, and F a power of 2."""

    last: PyTree  # leaves [N, ...], next_obs of the newest row
    obs: PyTree  # leaves [F, ...], final observations of truncated episodes; number n is at n mod F
    number: Array  # [R, N] uint32, which of them belongs to a truncated step; undefined at other steps
    count: Array  # [] uint32, how many there ever were

    @property
    def capacity(self) -> int:
        return jax.tree.leaves(self.obs)[0].shape[-jax.tree.leaves(self.last)[0].ndim]


def init(example_obs: PyTree, num_rows: int, num_envs: int, max_finals: int) -> Finals:
    """No observations yet, of leaves [...] like `example_obs`; F is `max_finals`, rounded up to a power of 2."""
    size = 1 << (max_finals - 1).bit_length()
    return Finals(
        last=jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape), x.dtype), example_obs),
        obs=jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), example_obs),
        number=jnp.zeros((num_rows, num_envs), jnp.uint32),
        count=jnp.zeros((), jnp.uint32),
    )


def add(state: Finals, slots: Array, rollout: Transition) -> Finals:
    """The state after a rollout [T, N, ...] that goes to `slots` [T]."""
    ends = _cut(rollout)
    nth = jnp.cumsum(ends.reshape(-1), dtype=jnp.uint32).reshape(ends.shape)
    count = state.count + nth[-1, -1]
    number = state.count + nth - jnp.uint32(1)
    size = state.capacity
    kept = ends & (count - number <= jnp.uint32(size))  # of more ends than there is room for, the last
    place = jnp.where(kept, (number % jnp.uint32(size)).astype(jnp.int32), size).reshape(-1)
    return Finals(
        last=jax.tree.map(lambda x: x[-1], rollout.next_obs),
        obs=jax.tree.map(
            lambda leaf, x: leaf.at[place].set(x.reshape(-1, *x.shape[2:]), mode="drop"), state.obs, rollout.next_obs
        ),
        number=state.number.at[slots].set(number, mode="promise_in_bounds", unique_indices=True),
        count=count,
    )


def known(state: Finals, step: Transition, slot: Array, env: Array) -> Array:
    """[...] bool: False at places of truncated steps whose final observation has been overwritten.

    Args:
      step: the steps at the places, leaves [..., ...].
      slot, env: [...] int32.
    """
    return ~_cut(step) | (state.count - state.number[slot, env] <= jnp.uint32(state.capacity))


def next_obs(state: Finals, step: Transition, slot: Array, env: Array, newest: Array, after: PyTree) -> PyTree:
    """The next_obs of places, undefined where the step is terminated or its final observation is not known.

    Args:
      step: the steps at the places, leaves [..., ...].
      slot, env: [...] int32.
      newest: [...] bool, whether the slot is that of the newest row.
      after: obs in the row after, leaves [..., ...].

    Returns:
      Leaves [..., ...].
    """
    cut = _cut(step)
    place = (state.number[slot, env] % jnp.uint32(state.capacity)).astype(jnp.int32)

    def pick(after: Array, last: Array, final: Array) -> Array:
        newest_rows, cut_rows = (jnp.expand_dims(x, range(x.ndim, after.ndim)) for x in (newest, cut))
        return jnp.where(cut_rows, final[place], jnp.where(newest_rows, last[env], after))

    return jax.tree.map(pick, after, state.last, state.obs)


def _cut(step: Transition) -> Array:
    """The steps whose next_obs is needed and is not the next row's obs."""
    return step.truncated & ~step.terminated

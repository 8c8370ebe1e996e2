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
    ends = _cut(rollout.terminated, rollout.truncated)
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


def known(state: Finals, steps: Transition, slot: Array, env: Array) -> Array:
    """[...] bool: False at places of truncated steps whose final observation has been overwritten."""
    ends = _cut(steps.terminated[slot, env], steps.truncated[slot, env])
    return ~ends | (state.count - state.number[slot, env] <= jnp.uint32(state.capacity))


def next_obs(state: Finals, steps: Transition, slot: Array, env: Array, next_slot: Array) -> PyTree:
    """The next_obs of places, undefined where the step is terminated or its final observation is not known.

    Args:
      steps: leaves [R, N, ...].
      slot, env: [...] int32.
      next_slot: [] int32, where the next row goes.

    Returns:
      Leaves [..., ...].
    """
    num_rows = steps.reward.shape[0]
    following = jnp.where(slot == num_rows - 1, 0, slot + 1)
    newest = following == next_slot
    ends = _cut(steps.terminated[slot, env], steps.truncated[slot, env])
    place = (state.number[slot, env] % jnp.uint32(state.capacity)).astype(jnp.int32)

    def pick(obs: Array, last: Array, final: Array) -> Array:
        newest_rows, end_rows = (jnp.expand_dims(x, range(x.ndim, x.ndim + obs.ndim - 2)) for x in (newest, ends))
        return jnp.where(end_rows, final[place], jnp.where(newest_rows, last[env], obs[following, env]))

    return jax.tree.map(pick, steps.obs, state.last, state.obs)


def _cut(terminated: Array, truncated: Array) -> Array:
    """The steps whose next_obs is needed and is not the next row's obs."""
    return truncated & ~terminated

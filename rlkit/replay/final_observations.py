"""Observations stored once: next_obs is the next row's obs, except in the newest row and at truncated steps.

The row after a truncated step holds the first observation of another episode, so the final observations of truncated
episodes are kept in a ring of their own.
"""

import jax
import jax.numpy as jnp
from flax import struct

from rlkit._mesh import vary_like
from rlkit.replay.short_repr import short_repr
from rlkit.types import Array, PyTree, Transition


class FinalObservations(struct.PyTreeNode):
    """Observations that give next_obs where the next row's obs does not. F, their number, is a power of 2."""

    last: PyTree  # leaves [N, ...], next_obs of the newest row
    obs: PyTree  # leaves [F, ...], final observations of truncated episodes; number n is at index n mod F
    number: Array  # [R, N] uint32, number of a truncated step's final observation, modulo 2^32; elsewhere undefined
    count: Array  # [] uint32, final observations ever added, modulo 2^32
    capacity: int = struct.field(pytree_node=False)  # F

    __repr__ = short_repr


def size_of(capacity: int) -> int:
    """F, the final observations that are stored where `capacity` are asked for: the next power of 2."""
    return 1 << (capacity - 1).bit_length()


def init(example_obs: PyTree, num_rows: int, num_envs: int, capacity: int) -> FinalObservations:
    """Return room for `capacity` observations, rounded up to a power of 2, of leaves [...] like `example_obs`."""
    size = size_of(capacity)
    return FinalObservations(
        last=jax.tree.map(lambda x: jnp.zeros((num_envs, *x.shape), x.dtype), example_obs),
        obs=jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), example_obs),
        number=jnp.zeros((num_rows, num_envs), jnp.uint32),
        count=jnp.zeros((), jnp.uint32),
        capacity=size,
    )


def add(state: FinalObservations, slots: Array, rollout: Transition) -> FinalObservations:
    """Return the state after a rollout [T, N, ...] that is written to `slots` [T]."""
    needed = _needs_final_obs(rollout)
    nth = jnp.cumsum(needed.reshape(-1), dtype=jnp.uint32).reshape(needed.shape)
    count = state.count + nth[-1, -1]
    number = state.count + nth - jnp.uint32(1)
    size = state.capacity
    newest = needed & (count - number <= jnp.uint32(size))  # the last F of the rollout, so that no index comes twice
    index = jnp.where(newest, (number % jnp.uint32(size)).astype(jnp.int32), size).reshape(-1)

    def write(leaf: Array, new: Array) -> Array:
        return leaf.at[index].set(new.reshape(index.size, *new.shape[2:]), mode="drop")

    return state.replace(
        last=vary_like(jax.tree.map(lambda x: x[-1], rollout.next_obs), state.last),
        obs=jax.tree.map(write, state.obs, rollout.next_obs),
        number=state.number.at[slots].set(number, mode="promise_in_bounds", unique_indices=True),
        count=count,
    )


def has_next_obs(state: FinalObservations, step: Transition, slot: Array, env: Array) -> Array:
    """Mark the steps whose next_obs is stored, [...] bool: False where a final observation has been overwritten.

    Args:
      state: the final observations.
      step: the steps at `slot` and `env`, leaves [..., ...].
      slot, env: [...] int32.
    """
    return ~_needs_final_obs(step) | (state.count - state.number[slot, env] <= jnp.uint32(state.capacity))


def next_obs(
    state: FinalObservations, step: Transition, slot: Array, env: Array, is_newest: Array, following_obs: PyTree
) -> PyTree:
    """Return next_obs of steps; undefined where they are terminated or `has_next_obs` is False.

    Args:
      state: the final observations.
      step: the steps at `slot` and `env`, leaves [..., ...].
      slot, env: [...] int32.
      is_newest: [...] bool, True where the slot is that of the newest row.
      following_obs: obs in the row after, leaves [..., ...].

    Returns:
      Leaves [..., ...].
    """
    truncated = _needs_final_obs(step)
    index = (state.number[slot, env] % jnp.uint32(state.capacity)).astype(jnp.int32)

    def pick(following: Array, last: Array, final: Array) -> Array:
        newest_rows, truncated_rows = (
            jnp.expand_dims(x, range(x.ndim, following.ndim)) for x in (is_newest, truncated)
        )
        return jnp.where(truncated_rows, final[index], jnp.where(newest_rows, last[env], following))

    return jax.tree.map(pick, following_obs, state.last, state.obs)


def _needs_final_obs(step: Transition) -> Array:
    """Mark the steps whose next_obs matters and is not the next row's obs, [...] bool."""
    return step.truncated & ~step.terminated

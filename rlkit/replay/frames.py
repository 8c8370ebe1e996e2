"""Frames stored once: an observation of n stacked frames is stored as n numbers of frames in a pool.

The observations of an environment, obs and next_obs of each of its steps in turn, are compared: each is the one before
shifted by some frames, and only the frames that are new are added to the pool. In an episode that is one frame a step.
An end costs one frame more, and a first stack of equal frames one. Nothing is assumed of resets, of lost lives or of
gaps between rollouts, and every observation is returned bit by bit. Observations that are no such stacks are stored
too, and take more room.

The pool holds the newest F frames of all environments. Where episodes are so short that its spare frames do not
suffice, the oldest steps lose theirs, and are not drawn.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit._mesh import vary_like
from rlkit.names import stack_axis
from rlkit.ops._integers import add_mod, sub_mod, uint32
from rlkit.replay.packing import MAX_PACKED_BYTES
from rlkit.replay.short_repr import short_repr
from rlkit.types import Array


class Frames(struct.PyTreeNode):
    """Frames of one leaf of the observations, of P numbers each."""

    pool: Array  # [F, P], the newest frames
    counts: Array  # [2] uint32, (number of the next frame modulo 2^32, its slot in the pool)
    leaf: jax.ShapeDtypeStruct = struct.field(pytree_node=False)  # of an observation, [*shape]
    stack: int = struct.field(pytree_node=False)  # n
    axis: int = struct.field(pytree_node=False)  # of the leaf's shape, along which frames are stacked, oldest first

    __repr__ = short_repr


def num_frames(capacity: int, num_envs: int, stack: int) -> int:
    """F: a frame a step, those before the oldest step, and a 20th, at least 1024, for the ends of episodes."""
    return min(capacity + stack * num_envs + max(1024, capacity // 20), 2 * stack * capacity)


def init(leaf: Any, num_envs: int, capacity: int, stack: int, image_axes: str) -> Frames | None:
    """Return an empty pool for a leaf [*shape] of the observations, or None where a pool would save nothing.

    Args:
      leaf: an array. It gets no pool if it has at most MAX_PACKED_BYTES, if it is not n frames along its axis, or if
        it has other numbers than integers and bools: a program may compute next_obs and the next row's obs apart, so
        that the last digits of real numbers differ, and no frame would be found again.
      num_envs: N.
      capacity: steps of all environments.
      stack: n.
      image_axes: the place of the channels of an image, as in an agent's Config.
    """
    shape, dtype = leaf.shape, leaf.dtype
    is_exact = dtype == jnp.bool_ or (jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits >= 8)
    if stack == 1 or not is_exact or leaf.size * dtype.itemsize <= MAX_PACKED_BYTES:
        return None
    axis = len(shape) + stack_axis(shape, image_axes)
    if shape[axis] % stack:
        return None
    size = num_frames(capacity, num_envs, stack)
    return Frames(
        pool=jnp.zeros((size, leaf.size // stack), dtype),
        counts=jnp.zeros((2,), jnp.uint32),
        leaf=jax.ShapeDtypeStruct(shape, dtype),
        stack=stack,
        axis=axis,
    )


def add(frames: Frames, before: Array, continues: Array, obs: Array, next_obs: Array) -> tuple[Frames, Array, Array]:
    """Add the new frames of a rollout.

    Args:
      frames: the pool.
      before: [N, n] uint32, the numbers of the last next_obs that were added.
      continues: [] bool, False where there is none.
      obs, next_obs: [T, N, *shape].

    Returns:
      The pool, and the numbers of obs and of next_obs, [T, N, n] uint32 each, in ascending order along n.
    """
    n, size = frames.stack, frames.pool.shape[0]
    num_steps, num_envs = obs.shape[:2]
    stacks = jnp.stack([_split(frames, obs), _split(frames, next_obs)], 1).reshape(2 * num_steps, num_envs, n, -1)
    bits = _bits(stacks)
    bits_before = jnp.concatenate([_bits(frames.pool[_slots(frames, before)])[None], bits[:-1]])
    # The stack before, shifted by the fewest frames. A step shifts it by one at least, also where its picture stands
    # still, so that a stack in use never has old frames.
    shift = jnp.full((2 * num_steps, num_envs), n)
    is_obs = (jnp.arange(2 * num_steps) % 2 == 0)[:, None]
    follows = (jnp.arange(2 * num_steps)[:, None] > 0) | continues
    for s in reversed(range(n)):
        same = (bits_before[:, :, s:] == bits[:, :, : n - s]).all((2, 3))
        shift = jnp.where(same & follows & (is_obs if s == 0 else True), s, shift)

    place = jnp.arange(n)[None, None]
    is_new = place >= n - shift[..., None]  # [2T, N, n]
    repeats = jnp.pad((bits[:, :, :-1] == bits[:, :, 1:]).all(-1), ((0, 0), (0, 0), (0, 1)))  # is as the frame after it
    is_added = is_new & ~repeats
    total = jnp.cumsum(is_added.reshape(-1), dtype=jnp.uint32)
    nth = total.reshape(is_added.shape) - is_added.astype(jnp.uint32)  # of a frame that repeats: the next one's
    total, number = total[-1], frames.counts[0] + nth

    # Numbers by environment and position in its sequence of frames, which begins with the stack before.
    position = jnp.cumsum(shift, axis=0)[..., None] + place
    env = jnp.broadcast_to(jnp.arange(num_envs)[None, :, None], position.shape)
    sequence = vary_like(jnp.pad(before, ((0, 0), (0, 2 * num_steps * n))), number)
    sequence = sequence.at[env, jnp.where(is_new, position, sequence.shape[1])].set(number, mode="drop")
    numbers = sequence[env, position].reshape(num_steps, 2, num_envs, n)

    is_kept = is_added & (total - nth <= jnp.uint32(size))  # the last F, so that no slot comes twice
    slot = add_mod(frames.counts[1], nth % jnp.uint32(size), size).astype(jnp.int32)
    slot = jnp.where(is_kept, slot, size).reshape(-1)
    new = frames.replace(
        pool=frames.pool.at[slot].set(stacks.reshape(slot.size, -1), mode="drop"),
        counts=jnp.stack([frames.counts[0] + total, uint32(add_mod(frames.counts[1], total % jnp.uint32(size), size))]),
    )
    return new, numbers[:, 0], numbers[:, 1]


def at(frames: Frames, numbers: Array) -> Array:
    """Return the observations of numbers [..., n] uint32, [..., *shape], undefined where a frame is lost."""
    return _join(frames, jnp.asarray(frames.pool).at[_slots(frames, numbers)].get(mode="promise_in_bounds"))


def are_stored(frames: Frames, numbers: Array) -> Array:
    """Mark the observations of numbers [..., n] uint32 all of whose frames are stored, [...] bool."""
    return frames.counts[0] - numbers[..., 0] <= jnp.uint32(frames.pool.shape[0])  # the first is the oldest


def _slots(frames: Frames, numbers: Array) -> Array:
    """Slots of frames, [...] int32, by their numbers [...] uint32; that of any frame where it has been overwritten."""
    size = frames.pool.shape[0]
    distance = frames.counts[0] - numbers
    distance = jnp.where(distance <= jnp.uint32(size), distance, jnp.uint32(size))
    return sub_mod(frames.counts[1], distance, size).astype(jnp.int32)


def _split(frames: Frames, obs: Array) -> Array:
    """Split observations [..., *shape] into frames [..., n, P]."""
    shape, axis = frames.leaf.shape, frames.axis
    leading = obs.shape[: obs.ndim - len(shape)]
    x = obs.reshape(*leading, *shape[:axis], frames.stack, shape[axis] // frames.stack, *shape[axis + 1 :])
    return jnp.moveaxis(x, len(leading) + axis, len(leading)).reshape(*leading, frames.stack, -1)


def _join(frames: Frames, x: Array) -> Array:
    """Join frames [..., n, P] into observations [..., *shape]."""
    shape, axis, leading = frames.leaf.shape, frames.axis, x.shape[:-2]
    x = x.reshape(*leading, frames.stack, *shape[:axis], shape[axis] // frames.stack, *shape[axis + 1 :])
    return jnp.moveaxis(x, len(leading), len(leading) + axis).reshape(*leading, *shape)


def _bits(x: Array) -> Array:
    """Bools or integers [..., P] as unsigned integers [..., P'], of 32 bits where P allows: fewer to compare."""
    num_bits, words = 8 * x.dtype.itemsize, 4 // x.dtype.itemsize
    if words <= 1 or x.shape[-1] % words:
        return x
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, np.dtype(f"uint{num_bits}"))
    parts = x.reshape(*x.shape[:-1], words, -1).astype(jnp.uint32)
    return sum((parts[..., i, :] << (num_bits * i) for i in range(1, words)), parts[..., 0, :])

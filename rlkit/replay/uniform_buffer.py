"""Uniform replay (Lin 1992): every stored step, or window of steps, is as likely as any other."""

from functools import partial

import jax.numpy as jnp
from flax import struct

from rlkit.replay import storage as rings
from rlkit.replay import validation, windows
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle
from rlkit.types import Array, Buffer, Key, Sample, Transition


class UniformState(struct.PyTreeNode):
    """A ring of steps."""

    ring: Ring


def uniform(
    capacity: int, batch_size: int, *, length: int = 1, store_obs_once: bool = False, max_finals: int | None = None
) -> Buffer:
    """A buffer of the last `capacity` steps, from which `batch_size` are drawn at a time, with replacement.

    Args:
      capacity: steps of all environments together, below 2^31, a multiple of their number.
      batch_size: B, items of a sample.
      length: L, rows of a window, for n-step returns. An item has leaves [B, ...] where it is 1, and [B, L, ...]
        above: a start can be drawn once L - 1 more rows of its environment are stored. The mask [B, L] ends with the
        first step's episode, and a window that is cut while its episode goes on ends with truncated set.
      store_obs_once: keep obs but not next_obs, which is the next row's obs: half the memory. The rows of an
        environment must then follow each other. Where an episode was truncated, its final observation is kept apart;
        next_obs of a terminated step, which nothing needs, is undefined.
      max_finals: how many final observations to keep (of every 16 steps one, and at least 1024); a step whose own has
        been overwritten is not drawn.

    Returns:
      `Buffer`. `sample` of an empty buffer raises ValueError outside of jit, and has a mask of False inside.

    Raises:
      ConfigError: a setting is out of range; at `init`, the capacity does not fit the environments.
    """
    finals = validation.settings(
        store_obs_once=store_obs_once, max_finals=max_finals, capacity=capacity, batch_size=batch_size, length=length
    )
    return Buffer(
        init=partial(init, capacity=capacity, length=length, max_finals=finals),
        add=add,
        sample=partial(sample, batch_size=batch_size, length=length),
        update=update,
        size=partial(size, length=length),
    )


def init(example: Transition, num_envs: int, *, capacity: int, length: int, max_finals: int | None) -> UniformState:
    """An empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    return UniformState(rings.init(example, num_envs, capacity, length, max_finals))


def add(state: UniformState, rollout: Transition) -> UniformState:
    """The buffer after a rollout [T, N, ...]; see `ring.add`."""
    return state.replace(ring=rings.add(state.ring, rollout))


def sample(state: UniformState, key: Key, *, batch_size: int, length: int) -> Sample:
    """B items, each drawable place equally likely: leaves [B, ...], or [B, L, ...] of windows."""
    validation.not_empty(size(state, length=length))
    place, drawn = windows.draw_known(
        state.ring, lambda key: windows.draw_uniformly(state.ring, key, batch_size, length), key, 1
    )
    drawn &= windows.num_starts(state.ring, length) > 0
    return windows.take(state.ring, place, jnp.ones((batch_size,)), drawn, length if length > 1 else None)


def update(state: UniformState, index: Handle, priority: Array) -> UniformState:
    """There are no priorities: the state as it is."""
    return state


def size(state: UniformState, *, length: int) -> Array:
    """How many places can be drawn, [] int32."""
    return windows.num_starts(state.ring, length)

"""Uniform replay (Lin 1992): every stored step, or window of steps, is equally likely."""

from functools import partial

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.ops._arrays import as_arrays, check_key
from rlkit.replay import storage, validation, windows
from rlkit.replay.flags import check_flags
from rlkit.replay.short_repr import short_repr
from rlkit.replay.storage import Ring
from rlkit.replay.validation import ObsStorage
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, Buffer, Key, PyTree, Sample, StateNode


class UniformState(StateNode):
    """State of a uniform buffer."""

    ring: Ring  # the stored steps

    __repr__ = short_repr


def uniform(
    capacity: int,
    batch_size: int,
    *,
    length: int = 1,
    store_obs_once: bool = False,
    max_final_obs: int | None = None,
    frame_stack: int = 1,
    image_axes: str = "auto",
    axis_name: str | None = None,
) -> Buffer:
    """Return a buffer of the last `capacity` steps, which draws `batch_size` items uniformly, with replacement.

    Args:
      capacity: steps of all environments together, a multiple of their number, below 2^31.
      batch_size: B, items of a sample.
      length: L, rows of an item, for n-step returns. Items have leaves [B, ...] and mask [B] where it is 1; above, they
        are windows with leaves [B, L, ...] and mask [B, L]. A window can be drawn once its L rows are stored. Its mask
        ends with the episode of its first step, and the last real step of an unfinished episode is marked truncated.
      store_obs_once: store obs but not next_obs, which is the next row's obs: half the bytes. The rows that are added
        must then follow each other without gaps. Final observations of truncated episodes are stored apart; next_obs of
        a terminated step, which no return needs, is undefined.
      max_final_obs: number of final observations to store, by default a sixteenth of the capacity and at least 1024. A
        step whose final observation has been overwritten is not drawn.
      frame_stack: n, frames of which each observation consists, the newest last, along the channels of an image or else
        the last axis: each frame is stored once, about 1 / 2n of the bytes. Leaves of integers or bools with more than
        256 bytes are stored so, and `store_obs_once` has no effect beside them. Samples are the same bit by bit,
        whatever the observations are. If they are no such stacks, or episodes have less than 25 steps on average, then
        the oldest steps lose their frames and are not drawn.
      image_axes: the place of an image's channels, "last", "first" or "auto", as in an agent's Config.
      axis_name: of the mesh axis over whose devices environments, capacity and batch are divided, inside of
        `jax.shard_map`: all three are counted on all devices together, and `size` on one. None for one device.

    Returns:
      `Buffer`. `sample` of an empty buffer raises ValueError outside of jit; inside, all of its mask is False.

    Raises:
      ConfigError: a setting is out of range; at `init`, the capacity does not fit the environments.
    """
    capacity, batch_size, length = validation.sizes(capacity=capacity, batch_size=batch_size, length=length)
    obs_storage = validation.obs_storage(
        store_obs_once=store_obs_once,
        max_final_obs=max_final_obs,
        frame_stack=frame_stack,
        image_axes=image_axes,
        capacity=capacity,
    )
    return Buffer(
        init=partial(init, capacity=capacity, length=length, obs_storage=obs_storage, axis_name=axis_name),
        add=add,
        sample=partial(sample, batch_size=batch_size, length=length, axis_name=axis_name),
        update=update,
        size=partial(size, length=length),
        batch_of_pass=partial(batch_of_pass, batch_size=batch_size, length=length, axis_name=axis_name),
    )


def init(
    example: PyTree,
    num_envs: int,
    *,
    capacity: int,
    length: int,
    obs_storage: ObsStorage,
    axis_name: str | None,
) -> UniformState:
    """Return an empty buffer for steps like `example`, leaves [...], of `num_envs` environments."""
    if length > 1:
        check_flags(example, "windows")
    capacity, num_envs, obs_storage = validation.shard(capacity, num_envs, obs_storage, axis_name)
    ring = storage.init(example, num_envs, capacity, length, obs_storage)
    return _mesh.vary(vary_like(UniformState(ring), example), axis_name)


def add(state: UniformState, rollout: PyTree) -> UniformState:
    """Add a rollout [T, N, ...]; see `storage.add`."""
    state = as_arrays(state)
    return state.replace(ring=storage.add(state.ring, rollout))


def sample(state: UniformState, key: Key, *, batch_size: int, length: int, axis_name: str | None) -> Sample:
    """Draw B items, each equally likely: leaves [B, ...], or [B, L, ...] of windows."""
    state = as_arrays(state)
    check_key(key)
    validation.check_not_empty(size(state, length=length))
    batch_size = _mesh.share("batch_size", batch_size, _mesh.size(axis_name))
    place, valid = draw_places(state.ring, key, batch_size, length)
    valid &= windows.num_windows(state.ring, length) > 0
    return windows.take(state.ring, place, jnp.ones((batch_size,), jnp.float32), valid, length if length > 1 else None)


# Jitted, because JAX compiles a loop anew whenever it is called outside of jit. Inlined, it changes no jitted program.
@partial(jax.jit, static_argnames=("batch_size", "length"), inline=True)
def draw_places(ring: Ring, key: Key, batch_size: int, length: int) -> tuple[Place, Array]:
    """The starts of B windows of L rows, each equally likely, and [B] bool, False where none was found."""
    return windows.draw_with_next_obs(ring, lambda key: windows.draw_uniformly(ring, key, batch_size, length), key, 1)


def batch_of_pass(
    state: UniformState, key: Key, k: Array | int, *, batch_size: int, length: int, axis_name: str | None
) -> Sample:
    """Return batch k of a pass over all items; see `Buffer.batch_of_pass`."""
    state = as_arrays(state)
    batch_size = _mesh.share("batch_size", batch_size, _mesh.size(axis_name))
    return windows.batch_of_pass(state.ring, key, k, batch_size=batch_size, length=length)


def update(state: UniformState, index: Handle, priority: Array) -> UniformState:
    """Return the state unchanged, as the buffer has no priorities."""
    return state


def size(state: UniformState, *, length: int) -> Array:
    """Number of items that can be drawn, [] int32."""
    return windows.num_windows(state.ring, length)

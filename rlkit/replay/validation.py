"""Checks of a buffer's settings, made before anything is traced."""

from typing import NamedTuple

import jax
from jax.core import Tracer

from rlkit import _mesh
from rlkit.ops._arrays import as_int
from rlkit.types import Array, ConfigError

_MAX_CAPACITY = 2**31 - 1


def sizes(*, capacity: int, **others: int) -> tuple[int, ...]:
    """Return the sizes of a buffer as ints: integers, also NumPy's, of at least 1, and the capacity below 2^31.

    Raises:
      ConfigError: a size is out of range; the message names it.
    """
    capacity, *rest = (as_int(name, value) for name, value in {"capacity": capacity, **others}.items())
    if capacity > _MAX_CAPACITY:
        raise ConfigError(
            f"capacity={capacity} must be below 2^31, so that indices are int32; use several buffers, one a device"
        )
    return capacity, *rest


def check_capacity(
    capacity: int, num_envs: int, *, min_rows: int = 1, purpose: str = "one step of each environment", divisor: str = ""
) -> None:
    """Check that a buffer of `capacity` steps consists of whole rows of N steps, and of at least `min_rows` of them.

    Args:
      capacity: steps of all environments together.
      num_envs: N, the environments (or streams of a dataset) that are stored side by side.
      min_rows: rows that the buffer must hold.
      purpose: the reason for `min_rows`, as it follows "for" in the message.
      divisor: the name of N in the message, `num_envs = N` by default.

    Raises:
      ConfigError: the capacity is not a multiple of N, or below min_rows * N; the message gives the nearest that fit.
    """
    num_envs = as_int("num_envs", num_envs)
    least = min_rows * num_envs
    if capacity % num_envs:
        below = capacity // num_envs * num_envs
        nearest = sorted({max(below, least), max(below + num_envs, least)})
        remedy = " or ".join(str(value) for value in nearest if value <= _MAX_CAPACITY)
        raise ConfigError(
            f"capacity={capacity} must be a multiple of {divisor or f'num_envs = {num_envs}'}; try {remedy}"
        )
    if capacity < least:
        raise ConfigError(f"capacity={capacity} must be at least {least}, for {purpose}; try {least}")


class ObsStorage(NamedTuple):
    """Settings of the storage of observations in a ring."""

    final_obs: int | None = None  # final observations to keep beside obs; None where every next_obs is stored
    frame_stack: int = 1  # frames of an observation, each of which is stored once; 1 for whole observations
    image_axes: str = "auto"  # the place of the channels of an image, along which frames are stacked


def obs_storage(
    *, store_obs_once: bool, max_final_obs: int | None, frame_stack: int, image_axes: str, capacity: int
) -> ObsStorage:
    """Return how observations are stored.

    Raises:
      ConfigError: `max_final_obs` is out of range, or given where every next_obs is stored; or `frame_stack` or
        `image_axes` is out of range.
    """
    frame_stack = as_int("frame_stack", frame_stack)
    if image_axes not in ("auto", "last", "first"):
        raise ConfigError(f"image_axes={image_axes!r} must be one of 'auto', 'last', 'first'")
    if not store_obs_once:
        if max_final_obs is not None:
            raise ConfigError(f"max_final_obs={max_final_obs} is for store_obs_once=True; set that, or leave it out")
        return ObsStorage(None, frame_stack, image_axes)
    number = default_final_obs(capacity) if max_final_obs is None else max_final_obs
    if not 1 <= number <= capacity:
        raise ConfigError(f"max_final_obs={max_final_obs} must lie in [1, capacity = {capacity}]")
    return ObsStorage(number, frame_stack, image_axes)


def default_final_obs(capacity: int) -> int:
    """Return the number of final observations that a buffer of `capacity` steps keeps: a sixteenth, at least 1024."""
    return min(capacity, max(1024, capacity // 16))


def shard(capacity: int, num_envs: int, obs_storage: ObsStorage, axis_name: str | None) -> tuple[int, int, ObsStorage]:
    """Return each device's part of the capacity, of the environments and of the final observations to keep.

    Raises:
      ConfigError: one of the first two cannot be divided over the devices of the axis.
    """
    devices = _mesh.size(axis_name)
    capacity, num_envs = _mesh.share("capacity", capacity, devices), _mesh.share("num_envs", num_envs, devices)
    final_obs = None if obs_storage.final_obs is None else -(-obs_storage.final_obs // devices)
    return capacity, num_envs, obs_storage._replace(final_obs=final_obs)


def check_not_empty(size: Array) -> None:
    """Raise ValueError where no item can be drawn, outside of jit; not under `jax.disable_jit`, which stands for it."""
    jit_is_disabled = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(size, Tracer) and not jit_is_disabled and size == 0:
        raise ValueError(
            "the buffer has nothing to draw: its size is 0; add more rows, or give an item a priority above 0"
        )

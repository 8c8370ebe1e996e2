"""What every buffer checks before anything is traced."""

from jax.core import Tracer

from rlkit.types import Array, ConfigError

_MAX_CAPACITY = 2**31 - 1


def settings(*, store_obs_once: bool, max_finals: int | None, capacity: int, **sizes: int) -> int | None:
    """How many final observations to keep beside observations stored once, None where next_obs is stored.

    Raises:
      ConfigError: a setting is out of range.
    """
    for name, value in {"capacity": capacity, **sizes}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}={value!r} must be an integer of at least 1")
    if capacity > _MAX_CAPACITY:
        raise ConfigError(
            f"capacity={capacity} must be below 2^31, so that places are int32; use several buffers, one a device"
        )
    if not store_obs_once:
        if max_finals is not None:
            raise ConfigError(f"max_finals={max_finals} is for store_obs_once=True; set that, or leave it out")
        return None
    finals = min(capacity, max(1024, capacity // 16)) if max_finals is None else max_finals
    if not 1 <= finals <= capacity:
        raise ConfigError(f"max_finals={max_finals} must lie in [1, capacity = {capacity}]")
    return finals


def not_empty(size: Array) -> None:
    """Raise ValueError where it is known, outside of jit, that nothing can be drawn."""
    if not isinstance(size, Tracer) and size == 0:
        raise ValueError("the buffer has nothing to draw yet: its size is 0; add more rows first")

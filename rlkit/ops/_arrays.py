"""Checks and conversions of the arguments of ops: one float dtype, and shapes that agree."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit.types import Array, ConfigError, PyTree

_SHARES = ("gamma", "gae_lambda", "lambda_")  # in [0, 1]
_SIZES = ("clip_eps", "clip_eps_low", "clip_eps_high", "kappa", "delta", "rho_clip", "c_clip", "dual_clip")  # >= 0


def as_floats(*values: ArrayLike) -> list[Array]:
    """Convert values to arrays of one dtype: float64 if any of them is float64, else float32."""
    arrays = [jnp.asarray(value) for value in values]
    dtype = jnp.float64 if any(array.dtype == jnp.float64 for array in arrays) else jnp.float32
    return [array.astype(dtype) for array in arrays]


def as_arrays(tree: PyTree) -> PyTree:
    """Convert the leaves of a tree to arrays of JAX: NumPy's cannot be indexed by traced integers."""
    return jax.tree.map(jnp.asarray, tree)


def scalars(like: Array, **values: ArrayLike) -> list[Array]:
    """Convert values to scalars of `like`'s dtype.

    Raises ValueError, naming the argument, if one is not a scalar, or where it is known and out of range.
    """
    for name, value in values.items():
        if isinstance(value, int | float | np.number):
            if name in _SHARES and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must be in [0, 1]")
            if name in _SIZES and not value >= 0:
                raise ValueError(f"{name}={value} must be at least 0")
        if np.shape(value) != ():
            raise ValueError(f"{name} has shape {np.shape(value)}, expected a scalar; use jax.vmap for several")
    return [jnp.asarray(value).astype(like.dtype) for value in values.values()]


def check_shapes(**arrays: Any) -> None:
    """Raise ValueError, naming the argument, unless all have the shape of the first: (B, 1) is not (B,)."""
    (first, expected), *rest = ((name, np.shape(array)) for name, array in arrays.items())
    for name, shape in rest:
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, expected {expected}, the shape of {first}")


def check_shape(name: str, array: Any, expected: Sequence[int]) -> None:
    """Raise ValueError, naming the argument, unless it has the expected shape."""
    if np.shape(array) != tuple(expected):
        raise ValueError(f"{name} has shape {np.shape(array)}, expected {tuple(expected)}")


def check_bools(**arrays: Any) -> None:
    """Raise ValueError, naming the argument, unless all are boolean."""
    for name, array in arrays.items():
        if jnp.asarray(array).dtype != jnp.bool_:
            raise ValueError(f"{name} has dtype {jnp.asarray(array).dtype}, expected bool")


def check_integers(**arrays: Any) -> None:
    """Raise ValueError, naming the argument, unless all are of an integer dtype."""
    for name, array in arrays.items():
        if not jnp.issubdtype(jnp.asarray(array).dtype, jnp.integer):
            raise ValueError(f"{name} has dtype {jnp.asarray(array).dtype}, expected integers")


def check_keys(keys: Any) -> None:
    """Raise ValueError unless it is a key or an array of them, as made by jax.random.key, not jax.random.PRNGKey."""
    if not isinstance(keys, jax.Array) or not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        kind = f"an array of {keys.dtype}" if hasattr(keys, "dtype") else f"{keys!r:.40}"
        raise ValueError(f"key is {kind}, expected a key; make one with jax.random.key(seed)")


def check_key(key: Any) -> None:
    """Raise ValueError unless it is one key, as made by jax.random.key."""
    check_keys(key)
    if key.shape:
        raise ValueError(f"key has shape {key.shape}, expected one key []; use jax.vmap for several")


def as_int(name: str, value: Any, least: int = 1) -> int:
    """Return a static integer, also NumPy's, as an int. Raises ConfigError unless it is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(f"{name}={value!r:.40} must be an integer of at least {least}")
    return int(value)


def pick(values: Array, index: ArrayLike) -> Array:
    """One entry of each row, values [..., A], index [...] int -> [...]; NaN where the index is not in [0, A)."""
    index = no_wraparound(index, values.shape[-1])
    return jnp.take_along_axis(values, index[..., None], axis=-1, mode="fill")[..., 0]


def no_wraparound(index: ArrayLike, size: int) -> Array:
    """Indices [...] with `size`, which is out of range, for each negative one, as JAX counts these from the end."""
    index = jnp.asarray(index)
    return jnp.where(index < 0, size, index)

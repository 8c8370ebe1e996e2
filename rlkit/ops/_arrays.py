"""What every op does at its door: one float type, and shapes that agree; and when and how often XLA computes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rlkit.types import Array

FEW = 4096  # numbers, below which XLA's CPU backend sums neighbors fast; see benchmarks/NOTES.md


def as_floats(*values: ArrayLike) -> list[Array]:
    """The values as arrays of one dtype: float64 if any of them is float64, else float32 (bfloat16 is promoted)."""
    arrays = [jnp.asarray(value) for value in values]
    dtype = jnp.float64 if any(array.dtype == jnp.float64 for array in arrays) else jnp.float32
    return [array.astype(dtype) for array in arrays]


def scalars(like: Array, **values: ArrayLike) -> list[Array]:
    """The values as scalars of `like`'s dtype. Raises ValueError, naming the argument, if one is not a scalar."""
    for name, value in values.items():
        if jnp.shape(value) != ():
            raise ValueError(f"{name} has shape {jnp.shape(value)}, expected a scalar; use jax.vmap for several")
    return [jnp.asarray(value).astype(like.dtype) for value in values.values()]


def check_shapes(**arrays: Any) -> None:
    """Raise ValueError, naming the argument, unless all have the shape of the first: (B, 1) is not (B,)."""
    (first, expected), *rest = ((name, jnp.shape(array)) for name, array in arrays.items())
    for name, shape in rest:
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, expected {expected}, the shape of {first}")


def check_shape(name: str, array: Any, expected: Sequence[int]) -> None:
    """Raise ValueError, naming the argument, unless it has the expected shape."""
    if jnp.shape(array) != tuple(expected):
        raise ValueError(f"{name} has shape {jnp.shape(array)}, expected {tuple(expected)}")


def check_bools(**arrays: Any) -> None:
    """Raise ValueError, naming the argument, unless all are boolean."""
    for name, array in arrays.items():
        if jnp.asarray(array).dtype != jnp.bool_:
            raise ValueError(f"{name} has dtype {jnp.asarray(array).dtype}, expected bool")


def pick(values: Array, index: ArrayLike) -> Array:
    """values [..., A], index [...] int -> [...]: one entry of each row, NaN where the index is out of range."""
    return jnp.take_along_axis(values, jnp.asarray(index)[..., None], axis=-1, mode="fill")[..., 0]


def hold(x: Array) -> Array:
    """x [...] itself, of 32-bit numbers, computed once.

    XLA's CPU backend would compute it again for each of its uses, random numbers for each of what they index, and a
    descent of a tree for each of its levels, which adds up to powers of two; it looks through an optimization barrier.
    It does not fuse across a scatter, and this one changes nothing: no bits are an integer below the lowest. (Of two
    indices, as one alone becomes a slice.)
    """

    def scattered(x: Array) -> Array:
        bits = lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
        bits = bits.at[np.zeros(2, np.int32)].max(np.iinfo(np.int32).min, mode="promise_in_bounds")
        return lax.bitcast_convert_type(bits.reshape(x.shape), x.dtype)

    return lax.platform_dependent(x, cpu=scattered, default=lambda x: x)


@jax.custom_jvp
def after(x: Array, other: Array) -> Array:
    """x [...] itself, computed after `other` [...], where both are 32-bit numbers.

    Where more than eight kernels are ready at once, XLA's CPU backend hands half of them to another thread, which takes
    longer to wake up than small kernels take. (No bits are an integer below the lowest, which XLA does not know.)
    """

    def ordered(x: Array, other: Array) -> Array:
        bits, first = (lax.bitcast_convert_type(a, jnp.int32) for a in (x, other[(0,) * other.ndim]))
        return lax.bitcast_convert_type(jnp.maximum(bits, jnp.minimum(first, np.iinfo(np.int32).min)), x.dtype)

    if not other.size or not {x.dtype, other.dtype} <= {np.dtype(name) for name in ("float32", "int32", "uint32")}:
        return x
    return lax.platform_dependent(x, other, cpu=ordered, default=lambda x, other: x)


after.defjvp(lambda primals, tangents: (after(*primals), tangents[0]))


def written(x: Array) -> Array:
    """x [...] itself, written down as it is: XLA's CPU backend else reads what it was made of through its transpose."""
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


@jax.custom_jvp
def leading(x: Array) -> Array:
    """x [..., A] as [A, ...], in memory too where it is not small.

    XLA's CPU backend takes 10 ns for a sum over a few neighbors, and cannot vectorize what is broadcast along them.
    """
    turned = jnp.moveaxis(x, -1, 0)
    return turned if x.size < FEW else written(turned)


@leading.defjvp
def _leading_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents  # the transpose writes down what it has turned back, hence the order
    return leading(x), jnp.moveaxis(tangent if x.size < FEW else written(tangent), -1, 0)

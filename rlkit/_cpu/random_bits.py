"""JAX's default generator in straight-line code: the same bits, from a program that a CPU compiles and runs faster.

JAX rolls the rounds of threefry into a loop, and XLA's CPU backend makes of each random number a loop of eight kernels
that fuses with nothing (benchmarks/ppo/NOTES.md).
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from rlkit._cpu.primitives import once
from rlkit._cpu.switch import enabled
from rlkit.types import Array, PyTree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_DEFAULT = "threefry2x32"  # JAX's name of its default generator

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def straight_line_keys(fn: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `fn`, with all that it draws from keys in its arguments in straight-line code, and the same bits.

    Keys of JAX's default generator anywhere in the arguments become keys of this one, and where there were any, those
    in the results become JAX's again. Keys of other generators stay.
    """

    @functools.wraps(fn)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not (exist() and enabled()):
            return fn(*args, **kwargs)
        new = [_convert(arg, _DEFAULT, _STRAIGHT) for arg in args]
        new_kwargs = {name: _convert(arg, _DEFAULT, _STRAIGHT) for name, arg in kwargs.items()}
        result: Any = fn(*new, **new_kwargs)  # type: ignore[arg-type]
        if all(map(operator.is_, args, new)) and all(kwargs[name] is arg for name, arg in new_kwargs.items()):
            return result
        if type(result) is tuple:
            return tuple(_convert(part, _STRAIGHT, _DEFAULT) for part in result)  # type: ignore[return-value]
        return _convert(result, _STRAIGHT, _DEFAULT)

    return wrapped


def exist() -> bool:
    """Return True where this version of JAX can define the generator, and it draws the bits of JAX's own."""
    return _STRAIGHT is not None and getattr(getattr(jax, "threefry_partitionable", None), "value", False)


def _convert(tree: PyTree, before, after) -> PyTree:
    """`tree` with all keys of the generator `before` as keys of `after`; without such keys, the same object."""

    def of(leaf):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not is_key or jax.random.key_impl(leaf) != before:
            return leaf
        return jax.random.wrap_key_data(jax.random.key_data(leaf), impl=after)

    leaves, structure = jax.tree.flatten(tree)
    new = [of(leaf) for leaf in leaves]
    return tree if all(map(operator.is_, leaves, new)) else jax.tree.unflatten(structure, new)


def _hash(key: Array, count: Array) -> tuple[Array, Array]:
    """Threefry 2x32 with 20 rounds (Salmon et al. 2011) of the counters (0, count) under key [2], all uint32."""
    first, second = (lax.broadcast(lax.index_in_dim(key, i, keepdims=False), count.shape) for i in range(2))
    keys = (first, second, lax.bitwise_xor(lax.bitwise_xor(first, second), np.uint32(0x1BD11BDA)))
    x, y = first, lax.add(count, second)
    for block in range(5):
        x, y = _four_rounds(x, y, _ROTATIONS[block % 2])
        x = lax.add(x, keys[(block + 1) % 3])
        y = lax.add(lax.add(y, keys[(block + 2) % 3]), np.uint32(block + 1))
    return x, y


@functools.partial(jax.jit, static_argnums=2)
def _four_rounds(x: Array, y: Array, rotations: tuple[int, ...]) -> tuple[Array, Array]:
    """In `lax`, and traced once for several blocks: jnp's functions were two fifths of the time to lower a program."""
    for rotation in rotations:
        x = lax.add(x, y)
        left, right = np.uint32(rotation), np.uint32(32 - rotation)
        y = lax.bitwise_xor(x, lax.bitwise_or(lax.shift_left(y, left), lax.shift_right_logical(y, right)))
    return x, y


def _pairs(key: Array, count: Array) -> Array:
    """Both words of each counter of `count` [...]: [..., 2].

    The rounds are in the program once for both words: half as long a kernel as that of two stacked arrays.
    """
    shape = (*count.shape, 2)
    x, y = _hash(key, lax.broadcast_in_dim(count, shape, tuple(range(count.ndim))))
    return lax.select(lax.eq(lax.broadcasted_iota(jnp.uint32, shape, count.ndim), np.uint32(0)), x, y)


def _counters(shape: tuple[int, ...]) -> Array:
    """One for each place of an array of fewer than 2^32, side by side."""
    return lax.iota(jnp.uint32, math.prod(shape))


def _seed(seed: Array) -> Array:
    raise NotImplementedError("keys of this generator come from rlkit._cpu.straight_line_keys; use jax.random.key")


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return once(_pairs(key, _counters(shape))).reshape(*shape, 2)


def _fold_in(key: Array, data: ArrayLike) -> Array:
    return _pairs(key, jnp.asarray(data, jnp.uint32))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    x, y = _hash(key, _counters(shape))
    if bit_width == 64:
        return ((x.astype(jnp.uint64) << 32) | y.astype(jnp.uint64)).reshape(shape)
    return once(x ^ y).astype(f"uint{bit_width}").reshape(shape)


def _define():
    """The generator, or None where JAX lacks the API that defines one."""
    try:
        from jax.extend.random import define_prng_impl

        return define_prng_impl(
            key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="straight",
            tag="str",
        )  # fmt: skip
    except (ImportError, AttributeError, TypeError):
        return None


_STRAIGHT = _define()

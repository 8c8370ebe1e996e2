"""JAX's default generator in straight-line code: the same bits, from a program that a CPU compiles and runs faster.

JAX rolls the rounds of threefry into a loop, and XLA's CPU backend makes of each random number a loop of eight kernels
that fuses with nothing (benchmarks/ppo/NOTES.md).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl
from jax.typing import ArrayLike

from rlkit._cpu.primitives import once, ones
from rlkit.types import Array, PyTree

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def straight(tree: PyTree) -> PyTree:
    """`tree` with all keys [...] of JAX's default generator as keys [...] of the same bits in straight-line code.

    Splits, folds and draws give what they give of the keys as they were. Keys of other generators stay.
    """
    return _converted(tree, "threefry2x32", _STRAIGHT) if jax.threefry_partitionable.value else tree


def plain(tree: PyTree) -> PyTree:
    """What `straight` has been taken of: the keys [...] that callers and files know."""
    return _converted(tree, _STRAIGHT, "threefry2x32")


def _converted(tree: PyTree, before, after) -> PyTree:
    def convert(x):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) or jax.random.key_impl(x) != before:
            return x
        return jax.random.wrap_key_data(jax.random.key_data(x), impl=after)

    return jax.tree.map(convert, tree)


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


@partial(jax.jit, static_argnums=2)
def _four_rounds(x: Array, y: Array, rotations: tuple[int, ...]) -> tuple[Array, Array]:
    """In `lax`, and traced once for several blocks: jnp's functions were two fifths of the time to lower a program."""
    for rotation in rotations:
        x = lax.add(x, y)
        left, right = np.uint32(rotation), np.uint32(32 - rotation)
        y = lax.bitwise_xor(x, lax.bitwise_or(lax.shift_left(y, left), lax.shift_right_logical(y, right)))
    return x, y


def _pairs(key: Array, count: Array) -> Array:
    """Both words of each counter of `count` [...]: [..., 2].

    The rounds stand there once for both words, in a kernel half as long as that of two stacked arrays.
    """
    shape = (*count.shape, 2)
    x, y = _hash(key, lax.broadcast_in_dim(count, shape, tuple(range(count.ndim))))
    # Less than a one that XLA does not recognize, as it would take what no key has a part in for a kernel of its own.
    second = lax.broadcast(ones(lax.index_in_dim(key, 0, keepdims=False)), shape)
    return lax.select(lax.lt(lax.broadcasted_iota(jnp.uint32, shape, count.ndim), second), x, y)


def _counters(shape: tuple[int, ...]) -> Array:
    """One for each place of an array of fewer than 2^32, side by side."""
    return lax.iota(jnp.uint32, math.prod(shape))


def _seed(seed: Array) -> Array:
    raise NotImplementedError("keys of this generator are made by rlkit._cpu.random_bits.straight")


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    return once(_pairs(key, _counters(shape))).reshape(*shape, 2)


def _fold_in(key: Array, data: ArrayLike) -> Array:
    return _pairs(key, jnp.asarray(data, jnp.uint32))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    x, y = _hash(key, _counters(shape))
    if bit_width == 64:
        return ((x.astype(jnp.uint64) << 32) | y.astype(jnp.uint64)).reshape(shape)
    return once(x ^ y).astype(f"uint{bit_width}").reshape(shape)


_STRAIGHT = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="straight", tag="str"
)

"""Arithmetic of 32 bits without overflow, and draws of integers without bias."""

from numbers import Integral

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rlkit import _cpu
from rlkit.ops._arrays import check_integers, check_shape
from rlkit.types import Array, Key


def uint32(x: Array | int) -> Array:
    """Return x, of any integer or bool dtype, as uint32."""
    return jnp.asarray(x, jnp.uint32)


def nearest_int32(name: str, x: ArrayLike) -> Array:
    """Return an integer as int32 [], the nearest where it does not fit. Raises ValueError, naming it, if it is none."""
    low, high = -(2**31), 2**31 - 1
    if isinstance(x, Integral):
        return jnp.int32(min(max(int(x), low), high))
    x = jnp.asarray(x)
    check_integers(**{name: x})
    check_shape(name, x, ())
    bounds = jnp.iinfo(x.dtype)
    return jnp.clip(x, max(low, int(bounds.min)), min(high, int(bounds.max))).astype(jnp.int32)


def add_mod(a: Array, b: Array, n: int) -> Array:
    """Return (a + b) mod n for uint32 a in [0, n) and b in [0, n], n < 2^32, also where a + b does not fit 32 bits."""
    rest = jnp.uint32(n) - b
    return jnp.where(a >= rest, a - rest, a + b)


def sub_mod(a: Array, b: Array, n: int) -> Array:
    """Return (a - b) mod n for uint32 a in [0, n) and b in [0, n], n < 2^32."""
    return jnp.where(a >= b, a - b, a + (jnp.uint32(n) - b))


def uniform_below(key: Key, shape: tuple[int, ...], n: Array) -> Array:
    """Draw integers uniform on [0, n), [*shape] uint32, for n uint32 of shape [] or [*shape]; 0 where n is 0.

    The integer part of n times a fraction of 64 random bits, so that no probability is off by more than n / 2^64 of
    itself. (jax.random.randint reduces 32 bits modulo n where n > 2^16: off by 1 in 12 at n = 3.5e8.)
    """
    high, low = jax.random.bits(key, (2, *shape), jnp.uint32)
    n = jnp.broadcast_to(n, shape)
    carry = _mul_high(low, n)
    return _cpu.materialize(_mul_high(high, n) + uint32((high * n + carry) < carry))  # plus what the low words carry


def _mul_high(a: Array, b: Array) -> Array:
    """The high 32 bits of the 64-bit product of two uint32 (Hacker's Delight, section 8-2)."""
    low = jnp.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> 16, a & low, b >> 16, b & low
    middle = a_high * b_low + ((a_low * b_low) >> 16)
    return a_high * b_high + (middle >> 16) + ((a_low * b_high + (middle & low)) >> 16)

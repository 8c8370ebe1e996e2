"""A keyed bijection on [0, n): shuffles without sorting, and draws without replacement without memory."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.ops._arrays import as_int, check_integers, check_key
from rlkit.types import Array, Key

_SMALL = 256  # up to here a sort of random bits: so few elements do not mix in a Feistel network
_ROUNDS = 8


def permute(key: Key, index: ArrayLike, n: int | Array) -> Array:
    """Return the images of each `index` under a random permutation of 0 ... n - 1, chosen by `key`.

    Each element is computed by itself, so that any part of the permutation costs only its own size: a Feistel network
    (Luby and Rackoff 1988) on a table of at least n elements, repeated until the result is below n (Black and Rogaway
    2002). Up to n = 256 it is a sort of random bits instead.

    Args:
      key: a key.
      index: [...] integers in [0, n).
      n: number of elements, 1 <= n <= 2^31; a Python integer, or a traced scalar [].

    Returns:
      [...] int32 in [0, n); over all of 0 ... n - 1, each value occurs once.

    Raises:
      ValueError: `key` is not a key, `index` or `n` are not of integers, or n is out of range.
    """
    check_key(key)
    index = jnp.asarray(index)
    check_integers(index=index)
    if isinstance(n, Integral):
        n = _checked(n)
        return _sort(key, n, n)[index] if n <= _SMALL else _walk(_words(key), index, n)
    check_integers(n=n)
    # Only one of the two is used, so that they may share the key.
    small = _sort(jax.random.clone(key), n, _SMALL)[index]
    return jnp.where(n <= _SMALL, small, _walk(_words(key), index, n))


def permutations(key: Key, count: int, n: int) -> Array:
    """Draw independent random permutations of 0 ... n - 1, by the method of `permute`, from one key.

    Args:
      key: a key.
      count: C, number of permutations.
      n: number of elements, 1 <= n <= 2^31.

    Returns:
      [C, n] int32.

    Raises:
      ValueError: `key` is not a key, or `count` or `n` are not integers, or out of range.
    """
    check_key(key)
    count, n = as_int("count", count, 0), _checked(n)
    if n <= _SMALL:
        return _sort(key, n, n, (count,))
    return _walk(_words(key, (count,)), jnp.arange(n, dtype=jnp.uint32), n)


def _checked(n: Any) -> int:
    """Return n as an int."""
    if not 1 <= n <= 2**31:
        raise ValueError(f"n={n} must lie in [1, 2^31]; split a longer range into blocks")
    return as_int("n", n)


def _sort(key: Key, n: int | Array, size: int, batch: tuple[int, ...] = ()) -> Array:
    """Return the permutations [*batch, size] that sort random words, the places from n on kept last."""
    places = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*batch, size))
    words = jax.random.bits(key, (2, *batch, size), jnp.uint32)  # two words each: both tie with probability 2^-64
    last = (places >= n).astype(jnp.uint32)
    *_, order = jax.lax.sort((last, words[0], words[1], places), num_keys=3)
    return order


def _words(key: Key, batch: tuple[int, ...] = ()) -> Array:
    """Draw the keys of Feistel networks, [*batch, K] uint32: one word a round, and one more."""
    return jax.random.bits(key, (*batch, _ROUNDS + 1), jnp.uint32)


def _walk(words: Array, index: Array, n: int | Array) -> Array:
    """Apply Feistel permutations of a domain barely larger than n, again and again to what is at n or above.

    There is one for each row of `words` [*batch, K]; all get the same `index`. Returns [*batch, *index.shape].
    """
    # Rows times columns exceed n by less than sqrt(n), and often by nothing: then one application is enough.
    exact = isinstance(n, int) and n % (1 << (n - 1).bit_length() // 2) == 0
    return _cycle_walk(words, index, jnp.asarray(n, jnp.uint32), exact)


# Jitted, because JAX compiles a loop anew whenever it is called outside of jit.
@partial(jax.jit, static_argnames="exact")
def _cycle_walk(words: Array, index: Array, n: Array, exact: bool) -> Array:
    """Apply the permutations once where that is `exact`, else until all images are below n [] uint32."""
    one = jnp.uint32(1)
    low_bits = (jnp.uint32(32) - jax.lax.clz(n - one)) // jnp.uint32(2)
    columns = one << low_bits
    rows = (n + (columns - one)) >> low_bits
    flat = jnp.pad(index.reshape(-1).astype(jnp.uint32), (0, _cpu.padded_size(index.size) - index.size))
    x = jnp.broadcast_to(flat, (*words.shape[:-1], flat.size))

    def walk(x: Array, outside: Array) -> tuple[Array, Array]:
        x = jnp.where(outside, _feistel(words, x, rows, low_bits), x)
        return x, x >= n

    if exact:
        x = _feistel(words, x, rows, low_bits)
    else:  # all count as outside at first, so that the network is compiled once
        everywhere = jnp.ones(x.shape, bool)
        start = vary_like((x, everywhere), words, n)
        x, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), lambda carry: walk(*carry), start)
    # Rounds are even permutations of most tables; an exchange of two elements, or none, makes both parities as likely.
    x = jnp.where(x < 2, x ^ (words[..., _ROUNDS:] & one), x)
    return x[..., : index.size].reshape(*words.shape[:-1], *index.shape).astype(jnp.int32)


def _feistel(words: Array, x: Array, rows: Array, low_bits: Array) -> Array:
    """Return a bijection on the table of `rows` rows and 2^low_bits columns: row and column shift each other in turn.

    The word by which a row is shifted is scaled to [0, rows), rows <= 2^16, by the high half of a product: no division.
    """
    columns_mask = (jnp.uint32(1) << low_bits) - jnp.uint32(1)
    row, column = x >> low_bits, x & columns_mask
    for i in range(0, _ROUNDS, 2):
        row, column = _two_rounds(row, column, words[..., i : i + 2], rows, columns_mask)
    return (row << low_bits) | column


@jax.jit  # traced once for all rounds
def _two_rounds(row: Array, column: Array, words: Array, rows: Array, columns_mask: Array) -> tuple[Array, Array]:
    word = _mix(column ^ words[..., :1])
    row = row + (((word >> 16) * rows + (((word & jnp.uint32(0xFFFF)) * rows) >> 16)) >> 16)
    row = jnp.where(row >= rows, row - rows, row)
    return row, column ^ (_mix(row ^ words[..., 1:]) & columns_mask)


def _mix(x: Array) -> Array:
    """Return a word whose every bit depends on every bit of x (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)

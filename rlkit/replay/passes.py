"""Passes without replacement: each item once, in random order, batch by batch and without memory."""

import jax
import jax.numpy as jnp

from rlkit.ops._arrays import as_int, check_key
from rlkit.ops._integers import nearest_int32, uint32
from rlkit.ops.permutation import permute
from rlkit.types import Array, Key


def batch_of_pass(key: Key, k: Array | int, batch_size: int, total: Array) -> tuple[Array, Array]:
    """Return the items of batch k of a pass over `total` items.

    Args:
      key: the key of the pass, the same for all of its batches.
      k: [] int, from 0; a pass has total / B batches, rounded up.
      batch_size: B, static.
      total: [] int32.

    Returns:
      [B] uint32 in [0, total), or 0; and [B] bool, False beyond the end of the pass, however far, and at k < 0.

    Raises:
      ValueError: `key` is not a key, `k` is not an integer, or B is not one of at least 1.
    """
    check_key(key)
    batch_size, k = as_int("batch_size", batch_size), nearest_int32("k", k)
    position = uint32(k) * jnp.uint32(batch_size) + jnp.arange(batch_size, dtype=jnp.uint32)
    num_batches = (uint32(total) + jnp.uint32(batch_size - 1)) // jnp.uint32(batch_size)
    in_pass = (k >= 0) & (uint32(k) < num_batches) & (position < uint32(total))  # the position alone may wrap around
    nth = permute(jax.random.clone(key), jnp.where(in_pass, position, 0), jnp.maximum(total, 1))
    return uint32(nth), in_pass

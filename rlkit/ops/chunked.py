"""Apply a function to a large batch in bounded memory."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rlkit._mesh import vary_like
from rlkit.types import PyTree


def chunked_map(fn: Callable[[PyTree], PyTree], batch: PyTree, chunk_size: int | None) -> PyTree:
    """Apply `fn` to `batch` in chunks of axis 0, in temporary memory that depends on the chunk and not on the batch.

    The result is that of `fn(batch)` for every `fn` that treats its rows independently. Each chunk is a slice of the
    batch in place; nothing is padded or copied. If `chunk_size` does not divide the rows, the last chunk ends at the
    end of the batch and repeats some rows of the chunk before it.

    Args:
      fn: function of a batch with leaves [chunk_size, ...], which returns leaves [chunk_size, ...].
      batch: a pytree of arrays [B, ...].
      chunk_size: rows of a chunk; None (or B and more) for the whole batch in one call.

    Returns:
      A pytree of arrays [B, ...].

    Raises:
      ValueError: the leaves of `batch` differ in their number of rows, or `chunk_size` is below 1.
    """
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError(
            f"batch has leaves with leading axes {sorted(sizes)}; give all of them the same rows on axis 0"
        )
    ((rows,),) = sizes
    if chunk_size is None or chunk_size >= rows:
        return fn(batch)
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1; use None for the whole batch at once")

    if rows % chunk_size == 0:
        split = jax.tree.map(lambda x: x.reshape(-1, chunk_size, *x.shape[1:]), batch)
        return jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), jax.lax.map(fn, split))

    def chunk_at(start):
        return fn(jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, chunk_size), batch))

    # The chunks overlap, so that stacking them (lax.map) would need a copy to join the rows: write each in its place
    # instead.
    def write(out, start):
        return jax.tree.map(
            lambda o, x: jax.lax.dynamic_update_slice_in_dim(o, x, start, 0), out, chunk_at(start)
        ), None

    shapes = jax.eval_shape(chunk_at, 0)
    out = vary_like(jax.tree.map(lambda x: jnp.zeros((rows, *x.shape[1:]), x.dtype), shapes), shapes)
    return jax.lax.scan(write, out, jnp.minimum(jnp.arange(0, rows, chunk_size), rows - chunk_size))[0]


def num_chunks(rows: int, chunk_size: int | None) -> int:
    """Return the number of equal chunks of the rows of a batch [B, ...]: the fewest of at most `chunk_size` rows.

    It is 1 if `chunk_size` is None or not below `rows`, and if only chunks of less than an eighth of `chunk_size` would
    divide the rows.
    """
    if chunk_size is None or chunk_size >= rows:
        return 1
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1; use None for all rows at once")
    fitting = (n for n in range(-(-rows // chunk_size), 8 * rows // chunk_size + 1) if rows % n == 0)
    return next(fitting, 1)

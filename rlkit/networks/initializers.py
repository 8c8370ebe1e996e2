"""Weight initializers that may be vmapped over seeds."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlkit.types import Array, Key


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """Matrices with orthonormal columns (or rows, whichever are fewer) times `scale` (Saxe et al. 2014).

    Uniform over all such matrices: Gram-Schmidt, applied twice to each column, on a normal matrix. It is plain XLA
    because the QR of LAPACK, which others use here, can hang a CPU program that holds several batched ones.

    Returns:
      A flax initializer (key, shape [..., fan_in, fan_out], dtype) -> weights; leading axes count as fan-in.
    """

    def init(key: Key, shape: tuple[int, ...], dtype=jnp.float32, out_sharding=None) -> Array:
        *fan_in, columns = shape
        rows = 1
        for size in fan_in:
            rows *= size
        long, short = max(rows, columns), min(rows, columns)
        basis = _orthonormalize(jax.random.normal(key, (short, long)))
        return (scale * (basis.T if rows >= columns else basis)).reshape(shape).astype(dtype)

    return init


def _orthonormalize(vectors: Array) -> Array:
    """[K, D] float32, K <= D -> the same span as orthonormal rows [K, D]."""

    def next_row(i, basis):
        row = vectors[i]
        for _ in range(2):  # once more, for what rounding left of the first
            row = row - (basis @ row) @ basis  # the rows from i on are still zero
        return basis.at[i].set(row / jnp.linalg.norm(row))

    return jax.lax.fori_loop(0, vectors.shape[0], next_row, jnp.zeros_like(vectors))

"""A dense layer whose weight gradient is computed in blocks of rows."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.initializers import if_starting, orthogonal
from rlkit.types import Array

_BLOCK = 128  # rows; see benchmarks/NOTES.md


class Dense(nn.Module):
    """x @ kernel + bias: [..., D] -> [..., size]. Weights are float32, the product is in `dtype`."""

    size: int
    scale: float = 1.0  # of the orthogonal kernel; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel_init = if_starting(self, orthogonal(self.scale))
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        x, kernel, bias = (a.astype(self.dtype) for a in (x, kernel, bias))
        flat = x.reshape(-1, x.shape[-1])
        return affine(flat, kernel, bias).reshape(*x.shape[:-1], self.size)


@jax.custom_jvp
def affine(x: Array, kernel: Array, bias: Array) -> Array:
    """x [B, D] @ kernel [D, F] + bias [F] -> [B, F].

    The gradient of the kernel, a product over B that leaves only [D, F], is the sum of those of blocks of rows: XLA
    does not share it among a CPU's cores otherwise (a quarter of the whole gradient's time at B = 2048, D = F = 64).
    """
    return x @ kernel + bias[None]


def _blockwise(x: Array, kernel: Array) -> Array:
    """x @ kernel, each block of rows by itself, so that the transpose is a sum over blocks."""
    rows, (depth, size) = x.shape[0], kernel.shape
    blocks = rows // _BLOCK if rows % _BLOCK == 0 else 1
    x = x.reshape(blocks, rows // blocks, depth)
    each = jnp.broadcast_to(kernel[None], (blocks, depth, size))
    if size >= depth:
        return (x @ each).reshape(rows, size)
    # In the transpose, the product of two sides over the rows, the narrower one then comes first: faster.
    return jax.lax.dot_general(each, x, (((1,), (2,)), ((0,), (0,)))).transpose(0, 2, 1).reshape(rows, size)


affine.defjvps(
    lambda tangent, y, x, kernel, bias: tangent @ kernel,
    lambda tangent, y, x, kernel, bias: _blockwise(x, tangent),
    lambda tangent, y, x, kernel, bias: jnp.broadcast_to(tangent[None], y.shape),
)

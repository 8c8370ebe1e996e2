"""A dense layer whose weight gradient is computed in blocks of rows."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from rlkit._cpu.primitives import written
from rlkit.networks.initializers import orthogonal, weight
from rlkit.types import Array

_BLOCK, _NARROW = 128, 16  # rows and columns; see benchmarks/ppo/NOTES.md


class Dense(nn.Module):
    """x @ kernel + bias: [..., D] -> [..., size]. Weights are float32, the product is in `dtype`."""

    size: int
    scale: float = 1.0  # of the orthogonal kernel; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = weight(self, "kernel", orthogonal(self.scale), (x.shape[-1], self.size))
        bias = weight(self, "bias", nn.initializers.zeros, (self.size,))
        x, kernel, bias = (a.astype(self.dtype) for a in (x, kernel, bias))
        flat = x.reshape(-1, x.shape[-1])
        return affine(flat, kernel, bias).reshape(*x.shape[:-1], self.size)


@jax.custom_jvp
def affine(x: Array, kernel: Array, bias: Array) -> Array:
    """x [B, D] @ kernel [D, F] + bias [F] -> [B, F].

    The gradient of the kernel, a product over B that leaves only [D, F], is the sum of those of blocks of rows: XLA
    does not share it among a CPU's cores otherwise (a quarter of the whole gradient's time at B = 2048, D = F = 64).
    """
    return lax.add(lax.dot(x, kernel), lax.broadcast(bias, x.shape[:1]))


def _blockwise(x: Array, kernel: Array) -> Array:
    """x @ kernel, each block of rows by itself, so that the transpose is a sum over blocks.

    The transpose is the product of two sides over the rows: the narrower one comes first, and if it is narrow and there
    are many rows, it is written down with the rows last. That takes a small copy, and a third of the time.
    """
    rows, (depth, size) = x.shape[0], kernel.shape
    blocks = rows // _BLOCK if rows % _BLOCK == 0 else 1
    turned = blocks > 1 and min(depth, size) <= _NARROW
    x = x.reshape(blocks, rows // blocks, depth)
    if depth <= size:
        each = lax.broadcast(kernel, (blocks,))
        if not turned:
            return lax.dot_general(x, each, (((2,), (1,)), ((0,), (0,)))).reshape(rows, size)
        y = lax.dot_general(written(x.transpose(0, 2, 1)), each, (((1,), (1,)), ((0,), (0,))))
        return y.reshape(rows, size)
    # Turned before it is repeated, so that the blocks' sum is turned back: XLA would turn each block's product.
    each = lax.broadcast(kernel.T, (blocks,))
    y = lax.dot_general(each, x, (((2,), (2,)), ((0,), (0,))))
    return (written(y) if turned else y).transpose(0, 2, 1).reshape(rows, size)


affine.defjvps(
    lambda tangent, y, x, kernel, bias: lax.dot(tangent, kernel),
    lambda tangent, y, x, kernel, bias: _blockwise(x, tangent),
    lambda tangent, y, x, kernel, bias: lax.broadcast(tangent, y.shape[:1]),
)

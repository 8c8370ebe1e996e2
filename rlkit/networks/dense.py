"""A dense layer whose weight gradient is computed in blocks of rows."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.initializers import orthogonal
from rlkit.types import Array

_BLOCK = 128  # rows; see benchmarks/NOTES.md


class Dense(nn.Module):
    """x @ kernel + bias: [..., D] -> [..., size]. Weights are float32, the product is in `dtype`."""

    size: int
    scale: float = 1.0  # of the orthogonal kernel; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel_init: Callable = orthogonal(self.scale)
        kernel = self.param("kernel", kernel_init, (x.shape[-1], self.size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        x, kernel, bias = (a.astype(self.dtype) for a in (x, kernel, bias))
        flat = x.reshape(-1, x.shape[-1])
        return affine(flat, kernel, bias).reshape(*x.shape[:-1], self.size)


@jax.custom_vjp
def affine(x: Array, kernel: Array, bias: Array) -> Array:
    """x [B, D] @ kernel [D, F] + bias [F] -> [B, F].

    The gradient of the kernel, a product over B that leaves only [D, F], is the sum of those of blocks of rows: XLA
    does not share it among a CPU's cores otherwise (a quarter of the whole gradient's time at B = 2048, D = F = 64).
    Reverse mode only: jax.jvp through it raises a TypeError.
    """
    return x @ kernel + bias[None]


def _forward(x, kernel, bias):
    return affine(x, kernel, bias), (x, kernel)


def _backward(saved, gradient):
    x, kernel = saved
    rows = x.shape[0]
    blocks = rows // _BLOCK if rows % _BLOCK == 0 else 1
    x, rows_gradient = (a.reshape(blocks, rows // blocks, a.shape[-1]) for a in (x, gradient))
    kernel_gradient = jnp.einsum("nbd,nbf->ndf", x, rows_gradient).sum(0)
    return gradient @ kernel.T, kernel_gradient, gradient.sum(0)


affine.defvjp(_forward, _backward)

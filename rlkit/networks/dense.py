"""A dense layer with orthogonal weights."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit import _cpu
from rlkit.networks.initializers import orthogonal_param
from rlkit.types import Array


class Dense(nn.Module):
    """x @ kernel + bias: [..., D] -> [..., size]. Weights are float32, the product is in `dtype`."""

    size: int
    scale: float = 1.0  # of the orthogonal kernel; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = orthogonal_param(self, "kernel", (x.shape[-1], self.size), self.scale)
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        x, kernel, bias = (a.astype(self.dtype) for a in (x, kernel, bias))
        flat = x.reshape(-1, x.shape[-1])
        return _cpu.affine(flat, kernel, bias).reshape(*x.shape[:-1], self.size)

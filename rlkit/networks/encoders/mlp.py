"""Dense layers."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.dense import Dense
from rlkit.types import Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
}


class MLP(nn.Module):
    """Dense layers with an activation after each: [..., D] -> [..., hidden_sizes[-1]]."""

    hidden_sizes: tuple[int, ...]
    activation: str = "tanh"
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for size in self.hidden_sizes:
            x = Dense(size, 2**0.5, self.dtype)(x)
            if self.layer_norm:
                x = nn.LayerNorm(dtype=self.dtype)(x)
            x = ACTIVATIONS[self.activation](x)
        return x

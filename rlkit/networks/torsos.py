"""Torsos: dense and convolutional layers from an observation to features."""

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


class Conv(nn.Module):
    """Convolutions, flattened, then dense layers: [..., H, W, C] -> [..., hidden_sizes[-1]].

    Layer i has `channels[i]` filters of 3x3 pixels, without padding. Images of 32 pixels and more are halved in size by
    every layer but the last; smaller ones (MinAtar's are 10 x 10) lose two pixels a layer.
    """

    channels: tuple[int, ...]
    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, image = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, *image)
        for i, channels in enumerate(self.channels):
            stride = 2 if image[0] >= 32 and i < len(self.channels) - 1 else 1
            x = Dense(channels, 2**0.5, self.dtype)(_patches(x, stride))
            x = ACTIVATIONS[self.activation](x)
        x = x.reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)


def _patches(x: Array, stride: int) -> Array:
    """Return the 3x3 patches that lie wholly inside images: [B, H, W, C] -> [B, H', W', 9 C].

    Their product with a matrix is a convolution. On a CPU, the gradient of a product takes a sixteenth of the time of
    that of a convolution (benchmarks/ppo/NOTES.md).
    """
    rows, columns = (size - 2 for size in x.shape[1:3])
    shifted = [x[:, i : i + rows : stride, j : j + columns : stride] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, axis=-1)

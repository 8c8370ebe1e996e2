"""Torsos: dense and convolutional layers from an observation to features."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class ConvLayer(NamedTuple):
    """One convolution, without padding."""

    channels: int
    kernel: int  # pixels a side
    stride: int


NATURE = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))  # of Mnih et al. 2015


def small_layers(channels: tuple[int, ...], shape: tuple[int, ...]) -> tuple[ConvLayer, ...]:
    """Layers of 3x3 filters for images (H, W, C).

    Images of 32 pixels and more are halved in size by every layer but the last; smaller ones (MinAtar's are 10 x 10)
    lose two pixels a layer.
    """
    strides = [2 if shape[0] >= 32 and i < len(channels) - 1 else 1 for i in range(len(channels))]
    return tuple(ConvLayer(count, 3, stride) for count, stride in zip(channels, strides, strict=True))


def smallest_side(shape: tuple[int, ...], layers: Sequence[ConvLayer]) -> int:
    """The smaller side of an image (H, W, C) after some convolutions, 0 or less where nothing is left."""
    side = min(shape[:2])
    for layer in layers:
        side = (side - layer.kernel) // layer.stride + 1
    return side


class Conv(nn.Module):
    """Convolutions, flattened, then dense layers: [..., H, W, C] -> [..., hidden_sizes[-1]]."""

    layers: tuple[ConvLayer, ...]
    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, image = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, *image)
        for layer in self.layers:
            x = Dense(layer.channels, 2**0.5, self.dtype)(_patches(x, layer.kernel, layer.stride))
            x = ACTIVATIONS[self.activation](x)
        x = x.reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)


def _patches(x: Array, kernel: int, stride: int) -> Array:
    """Return the square patches that lie wholly inside images: [B, H, W, C] -> [B, H', W', kernel^2 C].

    Their product with a matrix is a convolution. On a CPU, the gradient of a product takes a sixteenth of the time of
    that of a convolution (benchmarks/ppo/NOTES.md).
    """
    rows, columns = (size - kernel + 1 for size in x.shape[1:3])
    offsets = itertools.product(range(kernel), repeat=2)
    shifted = [x[:, i : i + rows : stride, j : j + columns : stride] for i, j in offsets]
    return jnp.concatenate(shifted, axis=-1)

"""Convolutions, then dense layers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.networks.encoders.mlp import ACTIVATIONS, MLP
from rlkit.networks.initializers import orthogonal_param
from rlkit.types import Array


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


class Convolution(nn.Module):
    """A convolution and a bias: [B, H, W, C] -> [B, H', W', channels]. Weights are float32, products are in `dtype`."""

    layer: ConvLayer
    scale: float = 1.0  # of the kernel, orthogonal as a matrix from a patch to the channels; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels, size, stride = self.layer
        kernel = orthogonal_param(self, "kernel", (size, size, x.shape[-1], channels), self.scale)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        x, kernel, bias = vary_like(tuple(a.astype(self.dtype) for a in (x, kernel, bias)))
        return _cpu.convolution(x, kernel, stride, "VALID") + bias[None, None, None]


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
            x = ACTIVATIONS[self.activation](Convolution(layer, 2**0.5, self.dtype)(x))
        x = x.reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)

"""Convolutions of any size, then dense layers."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.networks.encoders.mlp import ACTIVATIONS, MLP
from rlkit.networks.initializers import orthogonal_param
from rlkit.types import Array


class ConvLayer(NamedTuple):
    """One convolution."""

    channels: int
    kernel: int  # pixels a side
    stride: int
    padding: str = "valid"  # "valid" or "same"

    def side(self, pixels: int) -> int:
        """Pixels a side of the result, 0 or less where nothing is left."""
        return -(-pixels // self.stride) if self.padding == "same" else (pixels - self.kernel) // self.stride + 1


def conv_layers(
    channels: tuple[int, ...],
    kernels: tuple[int, ...],
    strides: tuple[int, ...] | None,
    padding: str,
    shape: tuple[int, ...],
) -> tuple[ConvLayer, ...]:
    """Return a layer for each entry of `channels`, for images (H, W, C).

    Without `strides`, images of 32 pixels and more are halved in size by every layer but the last; smaller ones
    (MinAtar's are 10 x 10) keep theirs, but for the pixels that a layer without padding loses.

    Raises:
      ValueError: `kernels` or `strides` has another length than `channels`, and more or fewer numbers than one.
    """
    count = len(channels)
    if strides is None:
        strides = tuple(2 if shape[0] >= 32 and i < count - 1 else 1 for i in range(count))
    kernels, strides = (sizes * count if len(sizes) == 1 else sizes for sizes in (kernels, strides))
    return tuple(ConvLayer(*sizes, padding) for sizes in zip(channels, kernels, strides, strict=True))


def smallest_side(shape: tuple[int, ...], layers: tuple[ConvLayer, ...]) -> int:
    """The smaller side of an image (H, W, C) after some convolutions, 0 or less where nothing is left."""
    side = min(shape[:2])
    for layer in layers:
        side = layer.side(side)
    return side


class Convolution(nn.Module):
    """A convolution and a bias: [B, H, W, C] -> [B, H', W', channels]. Weights are float32, products are in `dtype`."""

    layer: ConvLayer
    scale: float = 1.0  # of the kernel, orthogonal as a matrix from a patch to the channels; the bias starts at 0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels, size, stride, padding = self.layer
        kernel = orthogonal_param(self, "kernel", (size, size, x.shape[-1], channels), self.scale)
        bias = self.param("bias", nn.initializers.zeros, (channels,), jnp.float32)
        x, kernel, bias = vary_like(tuple(a.astype(self.dtype) for a in (x, kernel, bias)))
        return _cpu.convolution(x, kernel, stride, padding.upper()) + bias[None, None, None]


class Conv(nn.Module):
    """Convolutions, flattened, then dense layers: [..., H, W, C] -> [..., hidden_sizes[-1]].

    With `norm="layer"`, the pixels and channels of an image are normalized together after each convolution (Ba et al.
    2016), and scaled channel by channel.
    """

    layers: tuple[ConvLayer, ...]
    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    layer_norm: bool = False  # after each dense layer
    dtype: Any = jnp.float32
    norm: str = "none"  # "none" or "layer", after each convolution

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, image = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, *image)
        for layer in self.layers:
            x = Convolution(layer, 2**0.5, self.dtype)(x)
            if self.norm == "layer":
                x = nn.LayerNorm(dtype=self.dtype, reduction_axes=(-3, -2, -1), feature_axes=-1)(x)
            x = ACTIVATIONS[self.activation](x)
        x = x.reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)

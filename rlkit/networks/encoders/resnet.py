"""A residual network that keeps the size of the image, as AlphaZero's."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks.encoders.conv import ConvLayer, Convolution
from rlkit.networks.encoders.mlp import ACTIVATIONS, MLP
from rlkit.types import Array


class ResNet(nn.Module):
    """Residual blocks of 3x3 convolutions, then dense layers: [..., H, W, C] -> [..., hidden_sizes[-1]].

    After a first convolution, a block adds two convolutions, each after a batch normalization and an activation (He et
    al. 2016, "Identity mappings in deep residual networks"), and these two come after the last block as well. Where the
    number of channels changes, a 1x1 convolution is in the place of the identity. Batch normalization (Ioffe and
    Szegedy 2015) has the moments of a batch in training, over all leading axes and pixels, and running moments, its
    statistics, elsewhere.
    """

    hidden_sizes: tuple[int, ...] = (256,)
    activation: str = "relu"
    layer_norm: bool = False  # after each dense layer
    dtype: Any = jnp.float32
    channels: tuple[int, ...] = (64, 64)  # of each block

    @nn.compact
    def __call__(self, x: Array, train: bool = False) -> Array:
        def normal(x: Array) -> Array:
            normalized = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x.astype(jnp.float32))
            return ACTIVATIONS[self.activation](normalized.astype(self.dtype))

        batch, image = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, *image)
        x = Convolution(ConvLayer(self.channels[0], 3, 1, "same"), 1.0, self.dtype)(x)
        for channels in self.channels:
            layer = ConvLayer(channels, 3, 1, "same")
            change = Convolution(layer, 2**0.5, self.dtype)(normal(x))
            change = Convolution(layer, 2**0.5, self.dtype)(normal(change))
            same = x.shape[-1] == channels
            x = change + (x if same else Convolution(ConvLayer(channels, 1, 1), 1.0, self.dtype)(x))
        x = normal(x).reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)

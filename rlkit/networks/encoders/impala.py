"""The residual network of IMPALA."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.encoders.conv import ConvLayer, Convolution
from rlkit.networks.encoders.mlp import MLP
from rlkit.types import Array

CHANNELS = (16, 32, 32)  # of Espeholt et al. 2018, figure 3, right


class Impala(nn.Module):
    """Residual convolutions, then dense layers: [..., H, W, C] -> [..., hidden_sizes[-1]] (Espeholt et al. 2018).

    Each block is a 3x3 convolution, max pooling over 3x3 pixels that halves the image, and two residual blocks of two
    convolutions. Convolutions have the activation relu; dense layers have `activation`.
    """

    hidden_sizes: tuple[int, ...] = (256,)
    activation: str = "relu"
    layer_norm: bool = False  # after each dense layer
    dtype: Any = jnp.float32
    channels: tuple[int, ...] = CHANNELS  # of each block

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, image = x.shape[:-3], x.shape[-3:]
        x = x.reshape(-1, *image)
        for channels in self.channels:
            layer = ConvLayer(channels, 3, 1, "same")
            x = Convolution(layer, 1.0, self.dtype)(x)
            x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
            for _ in range(2):
                change = Convolution(layer, 2**0.5, self.dtype)(jax.nn.relu(x))
                x = x + Convolution(layer, 2**0.5, self.dtype)(jax.nn.relu(change))
        x = jax.nn.relu(x).reshape(*batch, -1)
        return MLP(self.hidden_sizes, self.activation, self.layer_norm, self.dtype)(x)

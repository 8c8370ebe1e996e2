"""Encoders of leaves of an observation, by the names that select them in a config."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn

from rlkit.networks.encoders.conv import Conv, ConvLayer
from rlkit.networks.encoders.impala import Impala
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.encoders.resnet import ResNet

NATURE = (ConvLayer(32, 8, 4), ConvLayer(64, 4, 2), ConvLayer(64, 3, 1))  # of DQN for Atari
MINATAR = (ConvLayer(16, 3, 1),)  # of DQN for MinAtar, Young and Tian 2019

MakeModule = Callable[..., nn.Module]  # takes hidden_sizes, and by name activation, layer_norm and dtype


class ImageEncoder(NamedTuple):
    """An encoder of images: [..., H, W, C] -> [..., hidden_sizes[-1]]."""

    make: MakeModule
    about: str  # a few words, for the description of a config's key
    smallest: int = 1  # pixels a side of the images that it can encode
    keys: tuple[str, ...] = ()  # of a config, which its module has as fields; those of "conv" make its layers


IMAGES = {
    # its first argument, the convolutions, depends on the config
    "conv": ImageEncoder(Conv, "see channels", keys=("channels", "kernels", "strides", "padding", "norm")),
    "nature": ImageEncoder(partial(Conv, NATURE), "Mnih et al. 2015", 36),
    "impala": ImageEncoder(Impala, "Espeholt et al. 2018"),
    "minatar": ImageEncoder(partial(Conv, MINATAR), "one convolution", 3),
    "resnet": ImageEncoder(
        ResNet, "a residual block for each of channels, with batch normalization", keys=("channels",)
    ),
}

# Encoders of vectors, [..., D] -> [..., hidden_sizes[-1]].
VECTORS: dict[str, MakeModule] = {"mlp": MLP}

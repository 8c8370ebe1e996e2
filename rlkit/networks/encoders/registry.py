"""Encoders of leaves of an observation, by the names that select them in a config."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn

from rlkit.networks.encoders import minatar, nature
from rlkit.networks.encoders.conv import Conv
from rlkit.networks.encoders.impala import Impala
from rlkit.networks.encoders.mlp import MLP

MakeModule = Callable[..., nn.Module]  # takes hidden_sizes, and by name activation, layer_norm and dtype


class ImageEncoder(NamedTuple):
    """An encoder of images: [..., H, W, C] -> [..., hidden_sizes[-1]]."""

    make: MakeModule
    about: str  # a few words, for the description of a config's key
    smallest: int = 1  # pixels a side of the images that it can encode


IMAGES = {
    "conv": ImageEncoder(Conv, "see channels"),  # its first argument, the convolutions, depends on the config
    "nature": ImageEncoder(partial(Conv, nature.LAYERS), "Mnih et al. 2015", nature.SMALLEST),
    "impala": ImageEncoder(Impala, "Espeholt et al. 2018"),
    "minatar": ImageEncoder(partial(Conv, minatar.LAYERS), "one convolution", minatar.SMALLEST),
}

# Encoders of vectors, [..., D] -> [..., hidden_sizes[-1]].
VECTORS: dict[str, MakeModule] = {"mlp": MLP}

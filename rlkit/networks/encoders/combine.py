"""Encoders: an observation of any space to features, by the torso that a config describes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks.encoders.conv import NATURE, Conv, ConvLayer, small_layers
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.features import features
from rlkit.spaces import Space
from rlkit.types import Array, PyTree

SETTINGS = (
    "torso",
    "hidden_sizes",
    "channels",
    "activation",
    "layer_norm",
    "compute_dtype",
    "image_axes",
)  # fields of Encoder that have the same names in an agent's Config

MakeEncoder = Callable[[], "Encoder"]  # a flax module makes its submodules where it uses them


class Encoder(nn.Module):
    """Dense layers, with convolutions first for images: an observation [...] -> [..., F] float32.

    The features of images are joined to each other and to the other numbers of the observation; beside those, an image
    has a dense layer of its own first. The layers compute in `compute_dtype`. Without hidden sizes and convolutions, F
    is the observation's own width.
    """

    obs_space: Space
    torso: str  # "auto", "mlp", "conv" or "nature"
    hidden_sizes: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    layer_norm: bool
    compute_dtype: str
    image_axes: str = "auto"  # "auto", "last" or "first"

    @nn.compact
    def __call__(self, obs: PyTree, beside: Array | None = None) -> Array:
        """Return the features; `beside` [..., D], an action say, is joined to the observation or to image features."""
        dtype = jnp.dtype(self.compute_dtype)
        images, vector = features(self.obs_space, obs, images=self.torso != "mlp", image_axes=self.image_axes)
        settings = {"activation": self.activation, "layer_norm": self.layer_norm, "dtype": dtype}
        alone = len(images) == 1 and vector is None
        dense = self.hidden_sizes if alone and beside is None else () if alone else self.hidden_sizes[:1]
        parts = [
            Conv(layers(self.torso, self.channels, x.shape[-3:]), dense, **settings)(x.astype(dtype)) for x in images
        ]
        parts += [x.astype(dtype) for x in (vector, beside) if x is not None]
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        if beside is not None or not alone:
            x = MLP(self.hidden_sizes, **settings)(x)
        return x.astype(jnp.float32)


def layers(torso: str, channels: tuple[int, ...], shape: tuple[int, ...]) -> tuple[ConvLayer, ...]:
    """The convolutions for images of this shape (H, W, C): "auto" takes the Nature CNN from 36 pixels a side on."""
    nature = torso == "nature" or (torso == "auto" and min(shape[:2]) >= 36)
    return NATURE if nature else small_layers(channels, shape)


def split_settings(obs_space: Space, settings: Mapping[str, Any]) -> tuple[MakeEncoder, dict[str, Any]]:
    """Return a function that makes the encoder of `settings`, and the settings that are not the encoder's."""
    of_encoder = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return partial(Encoder, obs_space, **of_encoder), others

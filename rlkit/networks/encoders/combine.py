"""Encoders of observations: each image by convolutions, joined to the other numbers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks.encoders import minatar, nature
from rlkit.networks.encoders.conv import Conv, ConvLayer, conv_layers
from rlkit.networks.encoders.impala import Impala
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.features import features
from rlkit.spaces import Space
from rlkit.types import Array, PyTree

SETTINGS = (
    "encoder",
    "hidden_sizes",
    "channels",
    "kernels",
    "strides",
    "padding",
    "norm",
    "activation",
    "layer_norm",
    "compute_dtype",
    "image_axes",
)  # fields of Encoder that have the same names in an agent's Config

MakeEncoder = Callable[..., "Encoder"]  # a flax module makes its submodules where it uses them


class Encoder(nn.Module):
    """Dense layers, with convolutions first for images: an observation [...] -> [..., F] float32.

    The features of images are joined to each other and to the other numbers of the observation; beside those, an image
    has a dense layer of its own first. The layers compute in `compute_dtype`. Without hidden sizes and convolutions, F
    is the observation's own width.
    """

    obs_space: Space
    encoder: str  # "auto", "mlp", "conv", "nature", "impala" or "minatar"
    hidden_sizes: tuple[int, ...]
    channels: tuple[int, ...]  # of "conv", and the next four as well
    activation: str
    layer_norm: bool
    compute_dtype: str
    kernels: tuple[int, ...] = (3,)
    strides: tuple[int, ...] | None = None  # None: see `conv_layers`
    padding: str = "valid"  # "valid" or "same"
    norm: str = "none"  # "none" or "layer"
    image_axes: str = "auto"  # "auto", "last" or "first"

    @nn.compact
    def __call__(self, obs: PyTree, beside: Array | None = None) -> Array:
        """Return the features; `beside` [..., D], an action say, is joined to the observation or to image features."""
        dtype = jnp.dtype(self.compute_dtype)
        images, vector = features(self.obs_space, obs, images=self.encoder != "mlp", image_axes=self.image_axes)
        settings = {"activation": self.activation, "layer_norm": self.layer_norm, "dtype": dtype}
        alone = len(images) == 1 and vector is None
        dense = self.hidden_sizes if alone and beside is None else () if alone else self.hidden_sizes[:1]
        parts = [self._of_image(x.shape[-3:], dense, settings)(x.astype(dtype)) for x in images]
        parts += [x.astype(dtype) for x in (vector, beside) if x is not None]
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        if beside is not None or not alone:
            x = MLP(self.hidden_sizes, **settings)(x)
        return x.astype(jnp.float32)

    def _of_image(self, shape: tuple[int, ...], dense: tuple[int, ...], settings: dict[str, Any]) -> nn.Module:
        """The encoder of an image of this shape (H, W, C)."""
        if self.encoder == "impala":
            return Impala(dense, **settings)
        layers = image_layers(self, self.encoder, shape)
        return Conv(layers, dense, **settings, norm=self.norm if of_image(self.encoder, shape) == "conv" else "none")


def of_image(encoder: str, shape: tuple[int, ...]) -> str:
    """The encoder of images (H, W, C): "auto" takes the Nature CNN where they are large enough, and "conv" below."""
    if encoder != "auto":
        return encoder
    return "nature" if min(shape[:2]) >= nature.SMALLEST else "conv"


def image_layers(config: Any, encoder: str, shape: tuple[int, ...]) -> tuple[ConvLayer, ...]:
    """Return the convolutions without residuals for images (H, W, C).

    Args:
      config: with the fields `channels`, `kernels`, `strides` and `padding`, which "conv" has.
      encoder: name of an encoder of images; "impala" has no such convolutions.
      shape: of the images.
    """
    match of_image(encoder, shape):
        case "nature":
            return nature.LAYERS
        case "minatar":
            return minatar.LAYERS
        case "conv":
            return conv_layers(config.channels, config.kernels, config.strides, config.padding, shape)
    return ()


def split_settings(obs_space: Space, settings: Mapping[str, Any]) -> tuple[MakeEncoder, dict[str, Any]]:
    """Return a function that makes the encoder of `settings`, and the settings that are not the encoder's."""
    of_encoder = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return partial(Encoder, obs_space=obs_space, **of_encoder), others

"""Encoders of observations: each image by convolutions, joined to the other numbers."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict

from rlkit.networks.encoders.conv import Conv, conv_layers
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.encoders.registry import IMAGES, VECTORS
from rlkit.networks.features import image, image_shape, is_image, leaves, vector
from rlkit.networks.network import training_flags
from rlkit.spaces import Space
from rlkit.types import Array, PyTree

MakeEncoder = Callable[..., "Encoder"]  # a flax module makes its submodules where it uses them


class Encoder(nn.Module):
    """Dense layers, with convolutions first for images: an observation [...] -> [..., F] float32.

    The features of images are joined to each other and to the other numbers of the observation; beside those, an image
    has a dense layer of its own first. The layers compute in `compute_dtype`. Without hidden sizes and convolutions, F
    is the observation's own width.
    """

    obs_space: Space
    encoder: str  # "auto", or a name of `VECTORS` or `IMAGES`
    hidden_sizes: tuple[int, ...]
    channels: tuple[int, ...]  # of "conv", and the next four as well; of "resnet"
    activation: str
    layer_norm: bool
    compute_dtype: str
    kernels: tuple[int, ...] = (3,)
    strides: tuple[int, ...] | None = None  # None: see `conv_layers`
    padding: str = "valid"  # "valid" or "same"
    norm: str = "none"  # "none" or "layer"
    image_axes: str = "auto"  # "auto", "last" or "first"
    encoders: Mapping[str, str] = FrozenDict()  # by the names of leaves, in place of `encoder`; see `choose`
    make_norm: Callable[[], nn.Module] | None = None  # of the dense layers after all leaves are joined; see `MLP`
    dropout: float = 0.0  # of the same layers

    @nn.compact
    def __call__(self, obs: PyTree, beside: Array | None = None, train: bool = False) -> Array:
        """Return the features; `beside` [..., D], an action say, is joined to the observation or to image features.

        `train` is passed to the encoders of leaves whose calls take it, or one of its other names (`as_network`).
        """
        dtype = jnp.dtype(self.compute_dtype)
        settings = {"activation": self.activation, "layer_norm": self.layer_norm, "dtype": dtype}
        kinds = choose(self.obs_space, self)
        alone = len(kinds) == 1 and kinds[0] in IMAGES
        ends = alone and beside is None and self.make_norm is None
        dense = self.hidden_sizes if ends else () if alone else self.hidden_sizes[:1]
        parts, joined = [], []
        for leaf, kind in zip(leaves(self.obs_space, obs), kinds, strict=True):
            if kind == "none":
                joined.append(vector(leaf))
                continue
            if kind in VECTORS:
                module, x = VECTORS[kind](dense, **settings), vector(leaf)
            else:
                x = image(leaf, self.image_axes)
                module = self._of_image(kind, x.shape[-3:], dense, settings)
            parts.append(module(x.astype(dtype), **training_flags(type(module).__call__, train)))
        others = [joined[0] if len(joined) == 1 else jnp.concatenate(joined, axis=-1)] if joined else []
        parts += [x.astype(dtype) for x in (*others, beside) if x is not None]
        x = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
        if not ends:
            x = MLP(self.hidden_sizes, **settings, make_norm=self.make_norm, dropout=self.dropout)(x, train)
        return x.astype(jnp.float32)

    def _of_image(
        self, kind: str, shape: tuple[int, ...], dense: tuple[int, ...], settings: dict[str, Any]
    ) -> nn.Module:
        """An encoder of images of this shape (H, W, C)."""
        if kind != "conv":
            own = {name: getattr(self, name) for name in IMAGES[kind].keys}
            return IMAGES[kind].make(dense, **settings, **own)
        layers = conv_layers(self.channels, self.kernels, self.strides, self.padding, shape)
        return Conv(layers, dense, **settings, norm=self.norm)


def field_names(module: type[nn.Module]) -> tuple[str, ...]:
    """Return the fields of an encoder or a head, without those that are spaces, encoders or flax's own."""
    others = ("obs_space", "make_encoder", "parent", "name")
    return tuple(field.name for field in dataclasses.fields(module) if field.name not in others)


SETTINGS = field_names(Encoder)  # of the same names in an agent's Config


def choose(space: Space, config: Any) -> list[str]:
    """Return the encoder of each leaf of an observation, in the order of `features.leaves`.

    It is "none" for a leaf that is joined to the others as it is, a name of `VECTORS` for one that is encoded as a
    vector, and one of `IMAGES` for images: leaves that `is_image`, and the only leaf if it has three axes.

    Args:
      space: of the observations.
      config: with the field `encoder`: "auto" is the Nature CNN for images that are large enough and "conv" below,
        "mlp" joins every leaf, and any other name is the encoder of all images or, of `VECTORS`, of all leaves; with
        `encoders`, by the names of leaves, in place of it (names without a leaf have no effect); and with
        `image_axes`, see `image_shape`.
    """
    found = leaves(space)
    kinds = []
    for leaf in found:
        shape = image_shape(leaf.space, config.image_axes)
        if shape is None or not (len(found) == 1 or is_image(leaf.space, config.image_axes)):
            auto, default = "none", "auto" if config.encoder in IMAGES else config.encoder
        else:
            auto, default = "nature" if min(shape[:2]) >= IMAGES["nature"].smallest else "conv", config.encoder
        kind = config.encoders.get(leaf.name, "none" if default == "mlp" else default)
        kinds.append(auto if kind == "auto" else kind)
    return kinds


def has_large_image(space: Space, config: Any) -> bool:
    """Return true where an image that is encoded as one is large enough for the Nature CNN; `config` as in `choose`."""
    kinds = zip(leaves(space), choose(space, config), strict=True)
    shapes = [image_shape(leaf.space, config.image_axes) for leaf, kind in kinds if kind in IMAGES]
    return any(min(shape[:2]) >= IMAGES["nature"].smallest for shape in shapes if shape is not None)


def split_settings(obs_space: Space, settings: Mapping[str, Any]) -> tuple[MakeEncoder, dict[str, Any]]:
    """Return a function that makes the encoder of `settings`, and the settings that are not the encoder's."""
    of_encoder = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return partial(Encoder, obs_space=obs_space, **of_encoder), others

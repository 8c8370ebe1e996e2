"""Encoders: an observation of any space to features, by the torso that a config describes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks.features import features, image_shape
from rlkit.networks.torsos import MLP, Conv
from rlkit.spaces import Space
from rlkit.types import Array, PyTree

SETTINGS = (
    "torso",
    "hidden_sizes",
    "channels",
    "activation",
    "layer_norm",
    "compute_dtype",
)  # fields of Encoder that have the same names in an agent's Config

MakeEncoder = Callable[[], "Encoder"]  # a flax module makes its submodules where it uses them


class Encoder(nn.Module):
    """Dense layers, or convolutions and dense layers for one image: an observation [...] -> [..., F] float32.

    The layers compute in `compute_dtype`. Without hidden sizes and convolutions, F is the observation's own width.
    """

    obs_space: Space
    torso: str  # "auto", "mlp" or "conv"
    hidden_sizes: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    layer_norm: bool
    compute_dtype: str

    @nn.compact
    def __call__(self, obs: PyTree, beside: Array | None = None) -> Array:
        """Return the features; `beside` [..., D], an action say, is joined to the observation or to image features."""
        image = self.torso == "conv" or (self.torso == "auto" and image_shape(self.obs_space) is not None)
        dtype = jnp.dtype(self.compute_dtype)
        x = features(self.obs_space, obs, image=image).astype(dtype)
        settings = {"activation": self.activation, "layer_norm": self.layer_norm, "dtype": dtype}
        if image:
            x = Conv(self.channels, () if beside is not None else self.hidden_sizes, **settings)(x)
        if beside is not None:
            x = jnp.concatenate([x, beside.astype(dtype)], axis=-1)
        if beside is not None or not image:
            x = MLP(self.hidden_sizes, **settings)(x)
        return x.astype(jnp.float32)


def split_settings(obs_space: Space, settings: Mapping[str, Any]) -> tuple[MakeEncoder, dict[str, Any]]:
    """Return a function that makes the encoder of `settings`, and the settings that are not the encoder's."""
    of_encoder = {name: value for name, value in settings.items() if name in SETTINGS}
    others = {name: value for name, value in settings.items() if name not in SETTINGS}
    return partial(Encoder, obs_space, **of_encoder), others

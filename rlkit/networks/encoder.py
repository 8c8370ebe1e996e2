"""From an observation of any space to features: the torso that a config describes."""

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
)  # the fields of Encoder that an agent's Config has under the same names


Make = Callable[[], "Encoder"]  # a network's torsos are made where they are used


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
        """`beside` [..., D] is joined to the observation, or to the last image layer's features: an action, say."""
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


def described(obs_space: Space, settings: Mapping[str, Any]) -> tuple[Make, dict[str, Any]]:
    """The torsos that `settings` describe, and the settings that are for others."""
    own = {name: value for name, value in settings.items() if name in SETTINGS}
    return partial(Encoder, obs_space, **own), {n: value for n, value in settings.items() if n not in SETTINGS}

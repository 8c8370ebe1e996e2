"""Network of quantiles of every action's return, at fractions that are an input."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.networks import views
from rlkit.networks.dense import Dense
from rlkit.networks.encoders import combine
from rlkit.networks.encoders.combine import MakeEncoder
from rlkit.networks.network import as_network
from rlkit.spaces import Space
from rlkit.types import Array, Network, PyTree


class ImplicitQuantiles(nn.Module):
    """Quantiles [..., K, A] of the returns of A actions at K fractions (Dabney et al. 2018b, section 3).

    The features [..., F] of an observation are multiplied by an embedding of each fraction, φ_j(τ) = relu(Σ_i w_ij
    cos(π i τ) + b_j) (eq. 4), and a linear head follows. A dueling head adds a value of the observation to each
    action's advantage over the mean of all (Wang et al. 2016, eq. 9), quantile by quantile.
    """

    make_encoder: MakeEncoder
    num_actions: int
    num_cosines: int
    dueling: bool

    @nn.compact
    def __call__(self, obs: PyTree, fractions: Array | np.ndarray, train: bool = False) -> Array:
        """`fractions` are [..., K] float32 in [0, 1], or [K] for all observations."""
        hidden = self.make_encoder()(obs, train=train)
        phi = jax.nn.relu(Dense(hidden.shape[-1], 2**0.5, name="embedding")(cosines(fractions, self.num_cosines)))
        phi = phi.reshape((1,) * (hidden.ndim + 1 - phi.ndim) + phi.shape)
        product = hidden[..., None, :] * phi
        out = Dense(self.num_actions, 0.01, name="advantage")(product)
        if self.dueling:
            out = out - jnp.mean(out, axis=-1, keepdims=True) + Dense(1, 0.01, name="value")(product)
        return out


SETTINGS = (*combine.SETTINGS, *combine.field_names(ImplicitQuantiles))  # an agent's Config has some of these names


def cosines(fractions: Array | np.ndarray, count: int) -> Array:
    """Return cos(π i τ) for i = 0 .. count - 1: fractions [...] -> [..., count] float32."""
    frequencies = np.pi * np.arange(count)
    tau = jnp.asarray(fractions, jnp.float32)[..., None]
    return jnp.cos(tau * frequencies.astype(np.float32).reshape((1,) * (tau.ndim - 1) + (count,)))


def implicit_quantiles(*, obs_space: Space, **settings: Any) -> Network:
    """Return `ImplicitQuantiles` as a `Network`, whose functions take the fractions after the observation.

    Args:
      obs_space: of the observations.
      settings: the fields of `Encoder`, and those of `ImplicitQuantiles` except the encoder.
    """
    make_encoder, others = combine.split_settings(views.actor_space(obs_space), settings)
    return as_network(ImplicitQuantiles(make_encoder, **others))

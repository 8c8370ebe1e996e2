"""Networks of continuous control: a policy whose spread depends on the observation, and Q-functions."""

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
from rlkit.spaces import Box, Space
from rlkit.types import Array, Network, PyTree

LOG_STD_MAX = 2.0  # of a policy; beyond it, and below -20, densities overflow


@jax.custom_vjp
def clip_parameter(x: Array, low: float, high: float) -> Array:
    """Clip a parameter [...] to [low, high] such that descent can bring it back from outside.

    The gradient passes inside of the bounds, and outside of them where a step against it leads back inside. That of
    `jnp.clip` is 0 outside: a parameter that an optimizer's momentum carries over a bound would stay there for ever.
    """
    return jnp.clip(x, low, high)


def _clip_forward(x: Array, low: float, high: float) -> tuple[Array, tuple[Array, float, float]]:
    return clip_parameter(x, low, high), (x, low, high)


def _clip_backward(residuals: tuple[Array, float, float], grad: Array) -> tuple[Array, None, None]:
    x, low, high = residuals
    outwards = ((x < low) & (grad > 0)) | ((x > high) & (grad < 0))
    return jnp.where(outwards, 0.0, grad), None, None


clip_parameter.defvjp(_clip_forward, _clip_backward)


class PolicyNetwork(nn.Module):
    """Parameters of a distribution of raw actions, from an observation, by the kind of `spread`.

    "none": loc [..., size] alone. "observation": `(loc, log_std)`, both [..., size]. "constant": the same, log_std
    being equal for all observations. "features": `(loc, log_std [F, size], features [..., F])`, for state-dependent
    exploration.
    """

    make_encoder: MakeEncoder
    size: int
    spread: str
    log_std_init: float
    log_std_min: float = -20.0

    @nn.compact
    def __call__(self, obs: PyTree, train: bool = False):
        hidden = self.make_encoder()(obs, train=train)
        loc = Dense(self.size, 0.01, name="loc")(hidden)
        if self.spread == "none":
            return loc
        if self.spread == "features":
            start = nn.initializers.constant(self.log_std_init)
            log_std = self.param("log_std", start, (hidden.shape[-1], self.size), jnp.float32)
            return loc, clip_parameter(log_std, self.log_std_min, LOG_STD_MAX), jax.lax.stop_gradient(hidden)
        if self.spread == "constant":
            log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), (self.size,), jnp.float32)
            log_std = clip_parameter(log_std, self.log_std_min, LOG_STD_MAX)
            return loc, jnp.broadcast_to(log_std.reshape((1,) * (loc.ndim - 1) + (-1,)), loc.shape)
        log_std = Dense(self.size, 0.01, name="log_std")(hidden) + self.log_std_init
        return loc, jnp.clip(log_std, self.log_std_min, LOG_STD_MAX)


class Critics(nn.Module):
    """K estimates of the value of an action (or of an observation), each by a network of its own.

    Returns [K, ...], or with `size` [K, ..., size]: the values of all actions of a discrete space, or quantiles.
    """

    make_encoder: MakeEncoder
    count: int
    size: int | None

    @nn.compact
    def __call__(self, obs: PyTree, action: Array | None = None, train: bool = False) -> Array:
        values = []
        for _ in range(self.count):  # as fast as one batched network (benchmarks/agents/choices.md)
            value = Dense(self.size or 1, 1.0)(self.make_encoder()(obs, action, train=train))
            values.append(value if self.size else value[..., 0])
        return jnp.stack(values)


class StateValue(nn.Module):
    """The value of an observation: [...]."""

    make_encoder: MakeEncoder

    @nn.compact
    def __call__(self, obs: PyTree, train: bool = False) -> Array:
        return Dense(1, 1.0)(self.make_encoder()(obs, train=train))[..., 0]


def policy_network(*, obs_space: Space, **settings: Any) -> Network:
    """Return a `PolicyNetwork` as a `Network`; `settings` are its fields and those of `Encoder`."""
    make_encoder, others = combine.split_settings(views.actor_space(obs_space), settings)
    return as_network(PolicyNetwork(make_encoder, **others))


def critics(*, obs_space: Space, **settings: Any) -> Network:
    """Return `Critics` as a `Network`, whose functions take the action after the observation."""
    make_encoder, others = combine.split_settings(obs_space, settings)
    return as_network(Critics(make_encoder, **others))


def state_value(*, obs_space: Space, **settings: Any) -> Network:
    """Return a value of observations, [...], as a `Network`; `settings` are the fields of `Encoder`."""
    return as_network(StateValue(combine.split_settings(obs_space, settings)[0]))


def unit_action(space: Box, action: Array) -> Array:
    """Scale actions [..., *space.shape] of a bounded box to [..., D] float32 in [-1, 1], the input of critics."""
    batch = action.shape[: action.ndim - len(space.shape)]
    low, high = (
        np.asarray(bound, np.float32).reshape((1,) * len(batch) + space.shape) for bound in (space.low, space.high)
    )
    unit = 2.0 * (action.astype(jnp.float32) - low) / np.maximum(high - low, np.float32(1e-8)) - 1.0
    return unit.reshape(*batch, -1)

"""A policy and critics with a memory, each with an encoder and a recurrent core of its own."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks import views
from rlkit.networks.cores import registry
from rlkit.networks.dense import Dense
from rlkit.networks.encoders import combine
from rlkit.networks.encoders.combine import MakeEncoder
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.heads.critics import LOG_STD_MAX
from rlkit.spaces import Space
from rlkit.types import Array, Network, PyTree


class MemoryPolicy(nn.Module):
    """Parameters of a distribution of raw actions, from an observation and a memory of those before it.

    Returns loc [..., size] (or logits) and the next memory; for a Box, where `has_spread` is true, loc, log_std and the
    next memory.
    """

    make_encoder: MakeEncoder
    recurrent: str  # a name in `cores.registry`
    memory_size: int
    memory_layers: int
    hidden_sizes: tuple[int, ...]  # dense layers after the core
    activation: str
    layer_norm: bool
    size: int
    has_spread: bool
    log_std_init: float

    def setup(self):
        self.encoder = self.make_encoder()
        self.core = registry.core(self.recurrent, self.memory_size, self.memory_layers)
        self.layers = MLP(self.hidden_sizes, self.activation, self.layer_norm)
        self.loc = Dense(self.size, 0.01)
        if self.has_spread:
            self.log_std = Dense(self.size, 0.01)

    def __call__(self, obs: PyTree, memory: PyTree, train: bool = False):
        memory, hidden = self.advance(memory, self.encode(obs, train))
        outputs = self.decode(hidden)
        return (*outputs, memory) if self.has_spread else (outputs, memory)

    def encode(self, obs: PyTree, train: bool = False) -> Array:
        """Return the features of the observations, projected for the core."""
        return self.core.project(self.encoder(obs, train=train))

    def advance(self, memory: PyTree, hidden: Array) -> tuple[PyTree, Array]:
        """Return the next memory and the features after one step of the core."""
        return self.core.advance(memory, hidden)

    def unroll(self, memory: PyTree, hidden: Array, start: Array) -> tuple[Array, PyTree]:
        """Return the features and the memory before each row, [T, B, ...], as `recurrent.unroll` does."""
        return self.core.unroll(memory, hidden, start)

    def decode(self, hidden: Array):
        """Return loc, and with a spread log_std as well, of the features."""
        hidden = self.layers(hidden)
        if not self.has_spread:
            return self.loc(hidden)
        return self.loc(hidden), jnp.clip(self.log_std(hidden) + self.log_std_init, -20.0, LOG_STD_MAX)


class MemoryCritics(nn.Module):
    """K estimates of the value of an action after the observations of an episode.

    One core, which all critics share, remembers the observations; dense layers of each critic's own evaluate its
    features together with the action. Returns Q [K, ...] and the next memory; with `size` Q [K, ..., size], the values
    of all actions of a discrete space, or quantiles.
    """

    make_encoder: MakeEncoder
    recurrent: str  # a name in `cores.registry`
    memory_size: int
    memory_layers: int
    hidden_sizes: tuple[int, ...]  # dense layers of each critic after the core
    activation: str
    layer_norm: bool
    dropout: float  # of those layers alone
    count: int
    size: int | None

    def setup(self):
        self.encoder = self.make_encoder()
        self.core = registry.core(self.recurrent, self.memory_size, self.memory_layers)
        made = [
            MLP(self.hidden_sizes, self.activation, self.layer_norm, dropout=self.dropout) for _ in range(self.count)
        ]
        self.layers = made
        self.values = [Dense(self.size or 1, 1.0) for _ in range(self.count)]

    def __call__(self, obs: PyTree, *inputs: Any, train: bool = False):
        *action, memory = inputs
        memory, hidden = self.advance(memory, self.encode(obs, *action, train=train))
        return self.decode(hidden), memory

    def encode(self, obs: PyTree, action: Array | None = None, train: bool = False) -> tuple[Array, Array | None]:
        """Return the features of the observations, projected for the core, and the action."""
        return self.core.project(self.encoder(obs, train=train)), action

    def advance(self, memory: PyTree, hidden: tuple) -> tuple[PyTree, tuple]:
        """Return the next memory and the features after one step of the core, with the action."""
        memory, features = self.core.advance(memory, hidden[0])
        return memory, (features, hidden[1])

    def unroll(self, memory: PyTree, hidden: tuple, start: Array) -> tuple[tuple, PyTree]:
        """Return the features, with the actions, and the memory before each row, as `recurrent.unroll` does."""
        features, before = self.core.unroll(memory, hidden[0], start)
        return (features, hidden[1]), before

    def decode(self, hidden: tuple) -> Array:
        """Return the values of features and actions."""
        x = jnp.concatenate([part for part in hidden if part is not None], axis=-1)
        values = [value(layers(x)) for layers, value in zip(self.layers, self.values, strict=True)]
        return jnp.stack([value if self.size else value[..., 0] for value in values])


SETTINGS = ("recurrent", "memory_size", "memory_layers")  # of the same names in an agent's Config


def memory_policy(*, obs_space: Space, **settings: Any) -> Network:
    """Return a `MemoryPolicy` as a `Network`; `settings` are its fields and those of `Encoder`."""
    return _network(MemoryPolicy, views.actor_space(obs_space), settings)


def memory_critics(*, obs_space: Space, dropout: float, **settings: Any) -> Network:
    """Return `MemoryCritics` as a `Network`, whose functions take the action between observation and memory."""
    return _network(MemoryCritics, views.critic_space(obs_space), settings, dropout=dropout)


def _network(module: Any, obs_space: Space, settings: dict[str, Any], **own: Any) -> Network:
    """A module of this file as a `Network`, with one dense layer after the core as the last one of the encoder."""
    make_encoder, others = combine.split_settings(obs_space, settings)
    shared = {name: settings[name] for name in ("activation", "layer_norm")}
    made = module(make_encoder, hidden_sizes=tuple(settings["hidden_sizes"][-1:]), **others, **shared, **own)
    start = registry.start(made.recurrent, made.memory_size, made.memory_layers)
    return registry.recurrent_network(made, start)

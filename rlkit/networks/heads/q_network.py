"""Networks of the values of all actions of a discrete space: plain or dueling, noisy, distributional, recurrent."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks import views
from rlkit.networks.cores import registry
from rlkit.networks.dense import Dense
from rlkit.networks.encoders import combine
from rlkit.networks.encoders.combine import MakeEncoder
from rlkit.networks.network import as_network
from rlkit.networks.norms.noisy import NoisyDense
from rlkit.spaces import Space
from rlkit.types import Array, Network, PyTree


class QNetwork(nn.Module):
    """Numbers for each of A actions from an observation: [..., A], or [..., A, outputs].

    A dueling head adds a value of the observation to each action's advantage over the mean of all (Wang et al. 2016,
    eq. 9). Where `recurrent` names a cell, the call takes a memory and returns the next one too.
    """

    make_encoder: MakeEncoder
    num_actions: int
    outputs: int | None  # numbers for each action; None for one number without an axis
    dueling: bool
    noisy: bool
    recurrent: str = "none"  # or a name in `cores.registry`
    memory_size: int = 0
    memory_layers: int = 1

    def setup(self):
        self.encoder = self.make_encoder()
        if self.recurrent != "none":
            self.cell = registry.core(self.recurrent, self.memory_size, self.memory_layers)
        dense = NoisyDense if self.noisy else Dense
        self.advantage = dense(self.num_actions * (self.outputs or 1), 0.01)
        if self.dueling:
            self.value = dense(self.outputs or 1, 0.01)

    def __call__(self, obs: PyTree, memory: PyTree = (), train: bool = False):
        hidden = self.encode(obs, train)
        if self.recurrent == "none":
            return self.decode(hidden)
        memory, hidden = self.advance(memory, hidden)
        return self.decode(hidden), memory

    def encode(self, obs: PyTree, train: bool = False) -> Array:
        """Return the features of the observations, projected for the recurrent cell if there is one."""
        hidden = self.encoder(obs, train=train)
        return hidden if self.recurrent == "none" else self.cell.project(hidden)

    def advance(self, memory: PyTree, hidden: Array) -> tuple[PyTree, Array]:
        """Return the next memory and the features after one step of the recurrent cell."""
        return self.cell.advance(memory, hidden)

    def unroll(self, memory: PyTree, hidden: Array, start: Array) -> tuple[Array, PyTree]:
        """Return the features and the memory before each row, [T, B, ...], as `recurrent.unroll` does."""
        return self.cell.unroll(memory, hidden, start)

    def decode(self, hidden: Array) -> Array:
        """Return the numbers of each action from the features."""
        shape = (self.num_actions, self.outputs or 1)
        out = self.advantage(hidden).reshape(*hidden.shape[:-1], *shape)
        if self.dueling:
            out = out - jnp.mean(out, axis=-2, keepdims=True) + self.value(hidden)[..., None, :]
        return out if self.outputs else out[..., 0]


SETTINGS = (*combine.SETTINGS, *combine.field_names(QNetwork))  # an agent's Config has some of these names


def q_network(*, obs_space: Space, **settings: Any) -> Network:
    """Return a `QNetwork` as a `Network`, whose noise, if it is noisy, is drawn from the key of `apply`.

    Args:
      obs_space: of the observations.
      settings: the fields of `Encoder`, and those of `QNetwork` except the encoder.
    """
    make_encoder, others = combine.split_settings(views.actor_space(obs_space), settings)
    module = QNetwork(make_encoder, **others)
    if module.recurrent == "none":
        return as_network(module)
    start = registry.start(module.recurrent, module.memory_size, module.memory_layers)
    return registry.recurrent_network(module, start)

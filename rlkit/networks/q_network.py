"""Networks of the values of all actions of a discrete space: plain or dueling, noisy, distributional, recurrent."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rlkit.networks import encoder
from rlkit.networks.cells import CELLS
from rlkit.networks.dense import Dense
from rlkit.networks.encoder import MakeEncoder
from rlkit.networks.initializers import stacked_init
from rlkit.networks.noisy import STREAM, NoisyDense
from rlkit.spaces import Space
from rlkit.types import Array, Key, Network, PyTree

SETTINGS = (*encoder.SETTINGS, "dueling", "noisy")  # fields of the same names in an agent's Config


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
    recurrent: str = "none"  # "none", "gru" or "lstm"
    memory_size: int = 0

    def setup(self):
        self.encoder = self.make_encoder()
        if self.recurrent != "none":
            self.cell = CELLS[self.recurrent](self.memory_size)
        dense = NoisyDense if self.noisy else Dense
        self.advantage = dense(self.num_actions * (self.outputs or 1), 0.01)
        if self.dueling:
            self.value = dense(self.outputs or 1, 0.01)

    def __call__(self, obs: PyTree, memory: PyTree = ()):
        hidden = self.encode(obs)
        if self.recurrent == "none":
            return self.decode(hidden)
        memory, hidden = self.advance(memory, hidden)
        return self.decode(hidden), memory

    def encode(self, obs: PyTree) -> Array:
        """Return the features of the observations, projected for the recurrent cell if there is one."""
        hidden = self.encoder(obs)
        return hidden if self.recurrent == "none" else self.cell.project(hidden)

    def advance(self, memory: PyTree, hidden: Array) -> tuple[PyTree, Array]:
        """Return the next memory and the features after one step of the recurrent cell."""
        return self.cell.advance(memory, hidden)

    def decode(self, hidden: Array) -> Array:
        """Return the numbers of each action from the features."""
        shape = (self.num_actions, self.outputs or 1)
        out = self.advantage(hidden).reshape(*hidden.shape[:-1], *shape)
        if self.dueling:
            out = out - jnp.mean(out, axis=-2, keepdims=True) + self.value(hidden)[..., None, :]
        return out if self.outputs else out[..., 0]


def q_network(*, obs_space: Space, **settings: Any) -> Network:
    """Return a `QNetwork` as a `Network`; if it is noisy, `apply` takes a key last, or None for no noise.

    Args:
      obs_space: of the observations.
      settings: the fields of `Encoder`, and those of `QNetwork` except the encoder.
    """
    make_encoder, others = encoder.split_settings(obs_space, settings)
    module = QNetwork(make_encoder, **others)
    init = stacked_init(module)
    apply = partial(_noisy, module) if module.noisy else module.apply
    if module.recurrent == "none":
        return Network(init, apply)
    start = CELLS[module.recurrent].start(module.memory_size)
    encode, advance, decode = (partial(module.apply, method=name) for name in ("encode", "advance", "decode"))
    return Network(init, apply, start, (encode, advance, decode))


def _noisy(module: QNetwork, params: PyTree, obs: PyTree, key: Key | None = None) -> Array:
    return module.apply(params, obs, rngs=None if key is None else {STREAM: key})  # type: ignore[return-value]

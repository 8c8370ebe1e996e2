"""The default networks of actor-critic agents: torsos, an optional recurrent core, a policy head and a value head."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlkit.networks.cells import CELLS, GRU, LSTM
from rlkit.networks.dense import Dense
from rlkit.networks.features import features, image_shape
from rlkit.networks.initializers import together
from rlkit.networks.torsos import MLP, Conv
from rlkit.types import Array, Network, PyTree, Space

SETTINGS = (
    "torso",
    "hidden_sizes",
    "channels",
    "activation",
    "layer_norm",
    "shared_torso",
    "recurrent",
    "memory_size",
    "log_std_init",
    "gsde",
    "compute_dtype",
)  # the fields of ActorCritic that an agent's Config has under the same names


class ActorCritic(nn.Module):
    """A policy and a value from an observation, through one torso or two.

    Returns `(policy, value)`, and the next memory as a third where `recurrent` names a recurrent cell:
      policy: logits [..., policy_size]; for real-valued actions `(loc, log_std)`, both [..., policy_size]; with `gsde`
        `(loc, log_std [F, policy_size], features [..., F])`.
      value: [...].
    Heads and recurrent cells compute in float32, torsos in `compute_dtype`.
    """

    obs_space: Space
    policy_size: int  # logits, or dimensions of a real-valued action
    real_valued: bool
    torso: str  # "auto", "mlp" or "conv"
    hidden_sizes: tuple[int, ...]
    channels: tuple[int, ...]
    activation: str
    layer_norm: bool
    shared_torso: bool
    recurrent: str  # "none", "gru" or "lstm"
    memory_size: int
    log_std_init: float
    gsde: bool
    compute_dtype: str

    def setup(self):
        self.torsos = {name: self._torso() for name in self._names()}
        self.cells = {name: self._cell() for name in self._names()} if self.recurrent != "none" else {}
        self.policy = Dense(self.policy_size, 0.01)
        self.value = Dense(1, 1.0)
        if self.real_valued:
            width = self.hidden_sizes[-1] if self.recurrent == "none" else self.memory_size
            shape = (width, self.policy_size) if self.gsde else (self.policy_size,)
            self.log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), shape, jnp.float32)

    def __call__(self, obs: PyTree, memory: PyTree = ()):
        hidden = self.encode(obs)
        if self.recurrent == "none":
            return self.decode(hidden)
        memory, hidden = self.advance(memory, hidden)
        return *self.decode(hidden), memory

    def encode(self, obs: PyTree) -> dict[str, Array]:
        """What each torso makes of the observations, projected for the cell where there is one."""
        x = features(self.obs_space, obs, image=self._image()).astype(jnp.dtype(self.compute_dtype))
        hidden = {name: torso(x).astype(jnp.float32) for name, torso in self.torsos.items()}
        return {name: self.cells[name].project(h) if self.cells else h for name, h in hidden.items()}

    def advance(self, memory: PyTree, hidden: dict[str, Array]) -> tuple[PyTree, dict[str, Array]]:
        """One step of the recurrent cells."""
        both = {name: cell.advance(memory[name], hidden[name]) for name, cell in self.cells.items()}
        return {name: after for name, (after, _) in both.items()}, {name: out for name, (_, out) in both.items()}

    def decode(self, hidden: dict[str, Array]) -> tuple[PyTree, Array]:
        """The policy and the value."""
        names = self._names()
        hidden_policy, value = hidden[names[0]], self.value(hidden[names[-1]])[..., 0]
        out = self.policy(hidden_policy)
        if not self.real_valued:
            return out, value
        if self.gsde:
            return (out, self.log_std, jax.lax.stop_gradient(hidden_policy)), value
        log_std = self.log_std.reshape((1,) * (out.ndim - 1) + (-1,))
        return (out, jnp.broadcast_to(log_std, out.shape)), value

    def _names(self) -> tuple[str, ...]:
        return ("shared",) if self.shared_torso else ("actor", "critic")

    def _image(self) -> bool:
        return self.torso == "conv" or (self.torso == "auto" and image_shape(self.obs_space) is not None)

    def _torso(self) -> nn.Module:
        settings = {
            "hidden_sizes": self.hidden_sizes,
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            "dtype": jnp.dtype(self.compute_dtype),
        }
        return Conv(self.channels, **settings) if self._image() else MLP(**settings)

    def _cell(self) -> GRU | LSTM:
        return CELLS[self.recurrent](self.memory_size)


def actor_critic(**settings: Any) -> Network:
    """`ActorCritic(**settings)` as a `Network`; its memory holds one cell state for each torso."""
    module = ActorCritic(**settings)
    init = together(module.init)
    if module.recurrent == "none":
        return Network(init, module.apply)
    start = CELLS[module.recurrent].start(module.memory_size)
    memory = dict.fromkeys(module._names(), start)
    encode, advance, decode = (partial(module.apply, method=name) for name in ("encode", "advance", "decode"))
    return Network(init, module.apply, memory, (encode, advance, decode))

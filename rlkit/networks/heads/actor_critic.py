"""The default networks of actor-critic agents: encoders, an optional recurrent core, a policy head and a value head."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.networks import views
from rlkit.networks.cores import registry
from rlkit.networks.dense import Dense
from rlkit.networks.encoders import combine
from rlkit.networks.encoders.combine import MakeEncoder
from rlkit.networks.network import as_network
from rlkit.spaces import Box, Discrete, MultiDiscrete, Space, leaf_spaces
from rlkit.types import Array, Network, PyTree


def policy_size(space: Space) -> int:
    """The number of logits and means of a policy for an action space."""
    return sum(map(_size, jax.tree.leaves(leaf_spaces(space))))


def _size(leaf: Discrete | MultiDiscrete | Box) -> int:
    """The logits or means of a part of an action."""
    if isinstance(leaf, Discrete):
        return leaf.n
    return sum(leaf.nvec) if isinstance(leaf, MultiDiscrete) else math.prod(leaf.shape)


class ActorCritic(nn.Module):
    """A policy and a value from an observation, through one encoder or two.

    Returns `(policy, value)`, and the next memory as a third where `recurrent` names a recurrent cell:
      policy: logits [..., A]; for a Box `(loc, log_std)`, both [..., D], and with `gsde`
        `(loc, log_std [F, D], features [..., F])`; for a Dict or a Tuple the logits or `(loc, log_std)` of each part,
        in the structure of an action.
      value: [...].
    Heads and recurrent cells compute in float32, encoders in their own `compute_dtype`. The leaf `privileged` of an
    observation is for the value alone; the value of an observation that lacks it is NaN.
    """

    obs_space: Space
    make_encoder: MakeEncoder
    width: int  # of the encoder's features
    action_space: Space
    shared_torso: bool
    recurrent: str  # "none" or a name in `cores.registry`
    memory_size: int
    memory_layers: int
    log_std_init: float
    gsde: bool

    def setup(self):
        spaces = {"critic": self.obs_space}
        self.encoders = {
            name: self.make_encoder(obs_space=spaces.get(name, views.actor_space(self.obs_space)))
            for name in self._names()
        }
        names = self._names() if self.recurrent != "none" else ()
        self.cells = {name: registry.core(self.recurrent, self.memory_size, self.memory_layers) for name in names}
        self.policy = Dense(policy_size(self.action_space), 0.01)
        self.value = Dense(1, 1.0)
        spaces = jax.tree.leaves(leaf_spaces(self.action_space))
        if real_size := sum(_size(space) for space in spaces if isinstance(space, Box)):
            width = self.width if self.recurrent == "none" else self.memory_size
            shape = (width, real_size) if self.gsde else (real_size,)
            start = nn.initializers.constant(self.log_std_init)
            self.log_std = self.param("log_std", start, shape, jnp.float32)

    def __call__(self, obs: PyTree, memory: PyTree = (), train: bool = False):
        hidden, after = self.encode(views.with_zeros(self.obs_space, obs), train), ()
        if self.recurrent != "none":
            memory, hidden = self.advance(memory, hidden)
            after = (memory,)
        policy, value = self.decode(hidden)
        value = value if views.is_complete(self.obs_space, obs) else jnp.full_like(value, jnp.nan)
        return policy, value, *after

    def encode(self, obs: PyTree, train: bool = False) -> dict[str, Array]:
        """Features of the observations by the name of the encoder, projected for the recurrent cell if there is one."""
        hidden = {name: encoder(obs, train=train) for name, encoder in self.encoders.items()}
        return {name: self.cells[name].project(h) if self.cells else h for name, h in hidden.items()}

    def advance(self, memory: PyTree, hidden: dict[str, Array]) -> tuple[PyTree, dict[str, Array]]:
        """Return the next memory and the features after one step of the recurrent cells."""
        steps = {name: cell.advance(memory[name], hidden[name]) for name, cell in self.cells.items()}
        return {name: memory for name, (memory, _) in steps.items()}, {name: out for name, (_, out) in steps.items()}

    def unroll(self, memory: PyTree, hidden: dict[str, Array], start: Array) -> tuple[dict[str, Array], PyTree]:
        """Return the features and the memory before each row, [T, B, ...], as `recurrent.unroll` does."""
        runs = {name: cell.unroll(memory[name], hidden[name], start) for name, cell in self.cells.items()}
        return {name: out for name, (out, _) in runs.items()}, {name: before for name, (_, before) in runs.items()}

    def decode(self, hidden: dict[str, Array]) -> tuple[PyTree, Array]:
        """Return the policy and the value of the features."""
        names = self._names()
        hidden_policy, value = hidden[names[0]], self.value(hidden[names[-1]])[..., 0]
        out = self.policy(hidden_policy)
        if self.gsde:
            return (out, self.log_std, jax.lax.stop_gradient(hidden_policy)), value
        return self._parts(out), value

    def _parts(self, out: Array) -> PyTree:
        """Return the logits or `(loc, log_std)` of each part of an action, from those of all parts joined."""
        spaces, structure = jax.tree.flatten(leaf_spaces(self.action_space))
        parts, boxes = _split(out, spaces), [i for i, space in enumerate(spaces) if isinstance(space, Box)]
        if boxes:
            log_std = self.log_std.reshape((1,) * (out.ndim - 1) + (-1,))
            for i, of_box in zip(boxes, _split(log_std, [spaces[i] for i in boxes]), strict=True):
                parts[i] = parts[i], jnp.broadcast_to(of_box, parts[i].shape)
        return structure.unflatten(parts)

    def _names(self) -> tuple[str, ...]:
        return ("shared",) if self.shared_torso else ("actor", "critic")


def _split(x: Array, spaces: list[Any]) -> list[Any]:
    """Return the columns of [..., sizes of the spaces joined] by space."""
    return jnp.split(x, np.cumsum([_size(space) for space in spaces])[:-1].tolist(), axis=-1)


SETTINGS = (*combine.SETTINGS, *combine.field_names(ActorCritic))  # an agent's Config has some of these names


def actor_critic(*, obs_space: Space, **settings: Any) -> Network:
    """Return an `ActorCritic` as a `Network`; its memory holds one cell state for each encoder.

    Args:
      obs_space: of the observations.
      settings: the fields of `Encoder`, and those of `ActorCritic` except the encoder and its width.
    """
    make_encoder, others = combine.split_settings(obs_space, settings)
    module = ActorCritic(obs_space, make_encoder, sum(settings["hidden_sizes"][-1:]), **others)
    if module.recurrent == "none":
        return as_network(module)
    start = registry.start(module.recurrent, module.memory_size, module.memory_layers)
    return registry.recurrent_network(module, dict.fromkeys(module._names(), start))

"""The default networks of actor-critic agents: torsos, an optional recurrent core, a policy head and a value head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.networks.dense import Dense
from rlkit.networks.features import features, is_image
from rlkit.networks.initializers import orthogonal
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

    @nn.compact
    def __call__(self, obs: PyTree, memory: PyTree = ()):
        image = self.torso == "conv" or (self.torso == "auto" and is_image(self.obs_space))
        x = features(self.obs_space, obs, image=image).astype(jnp.dtype(self.compute_dtype))
        names = ("shared",) if self.shared_torso else ("actor", "critic")
        hidden, next_memory = {}, {}
        for name in names:
            y = self._torso(image, name)(x).astype(jnp.float32)
            if self.recurrent != "none":
                next_memory[name], y = self._cell(name)(memory[name], y)
            hidden[name] = y
        policy = self._policy(hidden[names[0]])
        value = Dense(1, 1.0, name="value")(hidden[names[-1]])[..., 0]
        return (policy, value) if self.recurrent == "none" else (policy, value, next_memory)

    def _torso(self, image: bool, name: str) -> nn.Module:
        settings = {
            "hidden_sizes": self.hidden_sizes,
            "activation": self.activation,
            "layer_norm": self.layer_norm,
            "dtype": jnp.dtype(self.compute_dtype),
            "name": f"{name}_torso",
        }
        return Conv(self.channels, **settings) if image else MLP(**settings)

    def _cell(self, name: str) -> nn.Module:
        cell = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}[self.recurrent]
        return cell(
            self.memory_size,
            kernel_init=orthogonal(),
            recurrent_kernel_init=orthogonal(),
            name=f"{name}_{self.recurrent}",
        )

    def _policy(self, hidden: Array):
        out = Dense(self.policy_size, 0.01, name="policy")(hidden)
        if not self.real_valued:
            return out
        shape = (hidden.shape[-1], self.policy_size) if self.gsde else (self.policy_size,)
        log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), shape, jnp.float32)
        if self.gsde:
            return out, log_std, jax.lax.stop_gradient(hidden)
        return out, jnp.broadcast_to(log_std, out.shape)


def actor_critic(**settings: Any) -> Network:
    """`ActorCritic(**settings)` as a `Network`; its memory holds one cell state for each torso."""
    module = ActorCritic(**settings)
    zeros = np.zeros((module.memory_size,), np.float32)
    start = {"none": (), "gru": zeros, "lstm": (zeros, zeros)}[module.recurrent]
    names = () if module.recurrent == "none" else ("shared",) if module.shared_torso else ("actor", "critic")
    return Network(module.init, module.apply, dict.fromkeys(names, start) if names else ())

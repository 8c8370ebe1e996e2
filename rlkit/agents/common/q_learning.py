"""Value-based agents for discrete actions: static arguments, outputs of a Q-network, parameters for acting.

DQN, C51 and QR-DQN use all of it; agents with a network of another interface use `Static`, `Actor` and `actor`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rlkit.agents.common import exploration, off_policy, user_networks, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.names import ACTION_MASK
from rlkit.networks.heads import q_network
from rlkit.spaces import Dict, Discrete, Space
from rlkit.types import Agent, Array, Buffer, Key, Network, PyTree


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Any
    obs_space: Space
    action_space: Discrete
    network: Network
    buffer: Buffer
    axis_name: str | None = None  # of the mesh axis over which environments and batches are divided


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree
    stats: PyTree
    obs_stats: PyTree
    epsilon: Array  # [], the probability of a random action


def network(
    config_class: type,
    config: Any,
    obs_space: Space,
    action_space: Space,
    networks: Any,
    outputs: str | None = None,
    axis_name: str | None = None,
    **needs: Any,
) -> Network:
    """The network of a value-based agent.

    Args:
      config_class: the agent's class `Config`.
      config: with the fields of `EncoderConfig`, `dueling` and `noisy`.
      obs_space, action_space: an environment's spaces.
      networks: a user's network, see `dqn.make`; None for the one that `config` describes.
      outputs: field of `config`, the numbers for each action; None for one, without an axis of its own.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.
      needs: `memory`, as for `user_networks.checked`.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    supported = isinstance(action_space, Discrete)
    validation.check_action_space(
        config_class, config, action_space, supported=supported, needed="a Discrete action space"
    )
    assert isinstance(action_space, Discrete)
    validation.check_encoder(config, obs_space, action_space)
    width = None if outputs is None else getattr(config, outputs)
    if networks is None:
        settings = {"noisy": False} | config.model_dump(include=set(q_network.SETTINGS))
        return q_network.q_network(obs_space=obs_space, num_actions=action_space.n, outputs=width, **settings)
    sizes = np.array([action_space.n] if width is None else [action_space.n, width])
    described = {"noisy": getattr(config, "noisy", False)}
    if needs.get("memory") == "optional":
        described["recurrent"] = config.recurrent
    settings = {"described": described, "axis_name": axis_name, **needs}
    return user_networks.checked(networks, obs_space, "the outputs of each action", sizes, **settings)


def static(
    config_class: type,
    config: Any,
    obs_space: Space,
    action_space: Any,
    networks: Any,
    outputs: str | None,
    axis_name: str | None,
) -> Static:
    """The static arguments of an agent with replay; see `network`."""
    made = network(config_class, config, obs_space, action_space, networks, outputs, axis_name)
    return Static(config, obs_space, action_space, made, off_policy.buffer(config, axis_name), axis_name)


def apply(
    static: Any,
    variables: tuple[PyTree, PyTree],
    obs_stats: PyTree,
    obs: PyTree,
    key: Key | None = None,
    *,
    train: bool = False,
) -> tuple[Array, PyTree]:
    """The network's outputs for observations [...], in float32, and its statistics.

    Args:
      static: the arguments that `make` binds.
      variables: the network's parameters and statistics.
      obs_stats: statistics of observations.
      obs: leaves [...].
      key, train: as for `Network.apply`.
    """
    obs = normalize_obs(obs_stats, obs)
    return static.network.apply(*variables, obs, train=train, key=key)


def actor(static: Static, state: Any) -> Actor:
    """Parameters and statistics for acting: random until learning starts, then noisy or with probability epsilon."""
    noisy, num_steps = getattr(static.config, "noisy", False), state.replay.num_steps
    epsilon = jnp.zeros(()) if noisy else exploration.epsilon(state.hyper, num_steps)
    epsilon = jnp.where(num_steps < np.uint32(static.config.learning_starts), 1.0, epsilon)
    return Actor(state.params, state.stats, state.normalizer.obs, epsilon)


def agent(static: Any, **functions: Any) -> Agent:
    """The `Agent` of `init`, `act`, `policy` and `gradient_step`, see `off_policy.agent`, with the exploration here."""
    return off_policy.agent(static, actor=actor, uniform=uniform(static), **functions)


def uniform(static: Static) -> Callable[[Key], Array] | None:
    """Return `Agent.uniform`, random actions without the network; None where an observation says which are legal."""
    masked = isinstance(static.obs_space, Dict) and ACTION_MASK in static.obs_space.spaces
    return None if masked else static.action_space.sample

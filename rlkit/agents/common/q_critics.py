"""What agents with critics of actions share: their spaces, their networks, and how a critic sees an action.

Critics see the actions of a bounded box as [..., D] in [-1, 1], whatever its bounds, and so entropies are those of such
actions. In a discrete space they rate every action, and `rate` picks the one that was taken.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit.agents.common import action_distributions, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.networks import critics, encoder
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, Buffer, Network, PyTree


class Networks(NamedTuple):
    """A policy and critics, and the spaces that they are for."""

    obs_space: Space
    action_space: Discrete | Box
    policy: Network  # apply(params, obs) -> what action_distributions.distribution takes
    critics: Network  # apply(params, obs, action) -> [K, ...], or in a discrete space apply(params, obs) -> [K, ..., A]
    value: Network  # apply(params, obs) -> [1, ...], for agents that rate observations too

    @property
    def size(self) -> int:
        """Dimensions of an action, or the number of them in a discrete space."""
        return action_distributions.policy_size(self.action_space)

    @property
    def unit_space(self) -> Discrete | Box:
        """The actions as critics see them."""
        return self.action_space if isinstance(self.action_space, Discrete) else Box(-1.0, 1.0, (self.size,))


class Parts(NamedTuple):
    """The static surroundings of an agent's functions."""

    config: Any
    networks: Networks
    buffer: Buffer

    @property
    def obs_space(self) -> Space:
        return self.networks.obs_space


def make(config: Any, obs_space: Space, action_space: Space, *, name: str, discrete: bool, spread: str) -> Networks:
    """The networks that an agent's Config describes.

    Args:
      config: with the fields of `settings.Torso`, and `num_critics`.
      obs_space, action_space: an environment's spaces.
      name: the agent, for errors.
      discrete: whether it can act in a Discrete space, too.
      spread: of a policy for a Box: "observation", "features", "constant" or "none"; see `networks.critics`.

    Raises:
      ConfigError: the action space is neither a Box with finite bounds nor, where that is allowed, Discrete.
    """
    box = isinstance(action_space, Box) and action_space.bounded and jnp.issubdtype(action_space.dtype, jnp.floating)
    if not isinstance(action_space, Discrete | Box) or not (box or (discrete and isinstance(action_space, Discrete))):
        kinds = "a Discrete action space or a Box" if discrete else "a Box action space"
        raise validation.cannot_act(name, f"{kinds} of floats with finite bounds", action_space)
    validation.fits_network(config, obs_space)
    described = config.model_dump(include=set(encoder.SETTINGS))
    size = action_distributions.policy_size(action_space)
    policy = critics.policy_network(
        obs_space=obs_space,
        size=size,
        spread=spread if box else "none",
        log_std_init=getattr(config, "log_std_init", 0.0),
        **described,
    )
    rates = critics.critics(obs_space=obs_space, count=config.num_critics, size=None if box else size, **described)
    value = critics.critics(obs_space=obs_space, count=1, size=None, **described)
    return Networks(obs_space, action_space, policy, rates, value)


def init(networks: Networks, key: Array, obs: PyTree) -> dict[str, PyTree]:
    """The parameters of the policy and of the critics."""
    policy_key, critic_key = jax.random.split(key)
    action = () if isinstance(networks.action_space, Discrete) else (jnp.zeros((networks.size,)),)
    return {"policy": networks.policy.init(policy_key, obs), "critics": networks.critics.init(critic_key, obs, *action)}


def distribution(networks: Networks, params: PyTree, stats: PyTree, obs: PyTree) -> action_distributions.Distribution:
    """The policy's distribution of raw actions for observations [...]; a tanh normal over [-1, 1] for a Box."""
    output = networks.policy.apply(params, normalize_obs(networks.obs_space, stats, obs))
    return action_distributions.distribution(networks.unit_space, output, action_mask(obs), squash=True)


def rate(networks: Networks, params: PyTree, stats: PyTree, obs: PyTree, action: Array) -> Array:
    """What the critics say [K, ...] of actions as they see them, [..., D], or [...] of a discrete space."""
    obs = normalize_obs(networks.obs_space, stats, obs)
    if isinstance(networks.action_space, Discrete):
        every = networks.critics.apply(params, obs)
        return jax.vmap(pick, (0, None))(every, action)
    return networks.critics.apply(params, obs, action)


def seen(networks: Networks, action: Array) -> Array:
    """An environment's actions [...] as the critics see them."""
    if isinstance(networks.action_space, Discrete):
        return action
    return critics.unit_action(networks.action_space, action)


def taken(networks: Networks, unit: Array) -> Array:
    """Actions as critics see them, as the environment takes them."""
    return action_distributions.action(networks.action_space, unit, squash=False)

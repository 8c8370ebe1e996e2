"""Networks shared by SAC, TD3 and IQL: a policy, critics of actions, and actions scaled to [-1, 1].

Critics take the actions of a bounded box as [..., D] in [-1, 1], whatever its bounds, and so entropies are those of
such actions. In a discrete space one pass of a critic evaluates every action.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit.agents.common import action_distributions, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks import critics, encoder
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, Buffer, Key, Network, PyTree


class Networks(NamedTuple):
    """A policy and critics, and the spaces that they are for."""

    obs_space: Space
    action_space: Discrete | Box
    policy: Network  # apply(params, obs) -> the parameters of action_distributions.distribution
    critics: Network  # apply(params, obs, action) -> [K, ...], or in a discrete space apply(params, obs) -> [K, ..., A]
    value: Network  # apply(params, obs) -> [1, ...], for agents with a state value

    @property
    def size(self) -> int:
        """Dimensions of an action, or the number of actions of a discrete space."""
        return action_distributions.policy_size(self.action_space)

    @property
    def normalized_space(self) -> Discrete | Box:
        """The space of actions as critics take them."""
        return self.action_space if isinstance(self.action_space, Discrete) else Box(-1.0, 1.0, (self.size,))


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Any
    networks: Networks
    buffer: Buffer
    axis_name: str | None = None  # of the mesh axis over which environments and batches are divided

    @property
    def obs_space(self) -> Space:
        return self.networks.obs_space


def is_bounded_box(space: Space) -> bool:
    """True for a Box of floats with finite bounds."""
    return isinstance(space, Box) and space.bounded and jnp.issubdtype(space.dtype, jnp.floating)


def make(config: Any, obs_space: Space, action_space: Space, *, spread: str, log_std_min: float = -20.0) -> Networks:
    """The networks that an agent's Config describes.

    Args:
      config: a `QCriticConfig`.
      obs_space: an environment's observation space.
      action_space: Discrete, or a Box with finite bounds.
      spread: of a policy for a Box: "observation", "features", "constant" or "none"; see `networks.critics`.
      log_std_min: the least log standard deviation of that policy.

    Raises:
      ConfigError: a setting does not fit the observations.
    """
    assert isinstance(action_space, Discrete | Box)
    box = isinstance(action_space, Box)
    validation.check_torso(config, obs_space)
    described = config.model_dump(include=set(encoder.SETTINGS))
    size = action_distributions.policy_size(action_space)
    policy = critics.policy_network(
        obs_space=obs_space,
        size=size,
        spread=spread if box else "none",
        log_std_init=getattr(config, "initial_log_std", 0.0),
        log_std_min=log_std_min,
        **described,
    )
    q = critics.critics(obs_space=obs_space, count=config.num_critics, size=None if box else size, **described)
    value = critics.critics(obs_space=obs_space, count=1, size=None, **described)
    return Networks(obs_space, action_space, policy, q, value)


def init(networks: Networks, key: Key, obs: PyTree) -> dict[str, PyTree]:
    """The parameters of the policy and of the critics."""
    policy_key, critic_key = jax.random.split(key)
    action = () if isinstance(networks.action_space, Discrete) else (jnp.zeros((networks.size,)),)
    return {"policy": networks.policy.init(policy_key, obs), "critics": networks.critics.init(critic_key, obs, *action)}


def distribution(networks: Networks, params: PyTree, obs_stats: PyTree, obs: PyTree) -> Any:
    """The policy's distribution of raw actions for observations [...]; a tanh normal over [-1, 1] for a Box."""
    output = networks.policy.apply(params, normalize_obs(networks.obs_space, obs_stats, obs))
    return action_distributions.distribution(networks.normalized_space, output, action_mask(obs), squash=True)


def q_values(networks: Networks, params: PyTree, obs_stats: PyTree, obs: PyTree, action: Array) -> Array:
    """Q [K, ...] of normalized actions [..., D], or of actions [...] of a discrete space."""
    obs = normalize_obs(networks.obs_space, obs_stats, obs)
    if isinstance(networks.action_space, Discrete):
        every = networks.critics.apply(params, obs)
        return jax.vmap(pick, (0, None))(every, action)
    return networks.critics.apply(params, obs, action)


def optimizers(config: Any, hyper: Any, schedules: Schedules) -> tuple[Optimizer, Optimizer]:
    """The optimizers of the policy and of the critics, each with a learning rate and a clip norm of its own."""

    def of(group: str) -> Optimizer:
        rate = schedules.group_rates.get(f"{group}_learning_rate", schedules.learning_rate)
        norm = jnp.minimum(hyper.max_grad_norm, getattr(hyper, f"{group}_max_grad_norm"))
        return Optimizer.of(config, hyper, rate)._replace(max_grad_norm=norm)

    return of("actor"), of("critic")


def normalize_action(networks: Networks, action: Array) -> Array:
    """An environment's actions [...] as critics take them: [..., D] in [-1, 1] for a Box."""
    if isinstance(networks.action_space, Discrete):
        return action
    return critics.unit_action(networks.action_space, action)


def denormalize_action(networks: Networks, action: Array) -> Array:
    """Actions as critics take them, in the environment's units and shape."""
    return action_distributions.action(networks.action_space, action, squash=False)

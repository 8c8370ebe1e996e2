"""Networks shared by SAC, TQC, CrossQ, TD3, IQL and BC: a policy, critics of actions, and actions scaled to [-1, 1].

Critics take the actions of a bounded box as [..., D] in [-1, 1], whatever its bounds, and so entropies are those of
such actions. In a discrete space one pass of a critic evaluates every action.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common import action_distributions, user_networks, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks.encoders import combine
from rlkit.networks.features import action_mask
from rlkit.networks.heads import actor_critic, critics
from rlkit.ops._arrays import pick
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, Buffer, Key, Network, PyTree

Variables = tuple[PyTree, PyTree]  # parameters and statistics of a network


class Networks(NamedTuple):
    """A policy and critics, and the spaces that they are for."""

    obs_space: Space
    action_space: Discrete | Box
    policy: Network  # of an observation: the parameters of action_distributions.distribution
    # Of observation and action [..., D]: [K, ...], in TQC [K, ..., M]; discrete, of observation: [K, ..., A].
    critics: Network
    first_critic: Network  # of the critics' parameters and statistics: [1, ...] or [K, ...], the first one being equal
    value: Network | None  # of an observation: [...], for agents with a state value

    @property
    def size(self) -> int:
        """Dimensions of an action, or the number of actions of a discrete space."""
        return actor_critic.policy_size(self.action_space)

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

    @property
    def action_space(self) -> Discrete | Box:
        return self.networks.action_space


_NO_CRITICS = Network(lambda key, *inputs: ((), ()), lambda params, stats, *inputs, **training: ((), ()))


def is_bounded_box(space: Space) -> bool:
    """True for a Box of floats with finite bounds."""
    return isinstance(space, Box) and space.bounded and jnp.issubdtype(space.dtype, jnp.floating)


def make(
    config: Any,
    obs_space: Space,
    action_space: Space,
    networks: Mapping[str, Any] | None,
    *,
    spread: str,
    log_std_min: float = -20.0,
    has_value: bool = False,
    has_critics: bool = True,
    outputs: int | None = None,
    make_norm: Callable[[], Any] | None = None,
    axis_name: str | None = None,
) -> Networks:
    """The networks of a user, and for those that are not given the ones that an agent's Config describes.

    Args:
      config: a `QCriticConfig`; `critic_hidden_sizes`, where it has them, are the dense layers of its critics.
      obs_space: an environment's observation space.
      action_space: Discrete, or a Box with finite bounds.
      networks: of a user, by the names "policy", "critics" and "value", in any form of `networks.as_network`; see
        `sac.make`.
      spread: of a policy for a Box: "observation", "features", "constant" or "none"; see `networks.heads.critics`.
      log_std_min: the least log standard deviation of that policy.
      has_value: whether the agent has a state value.
      has_critics: whether it has critics of actions; without, those of the result have no parameters.
      outputs: numbers that each critic has for an action of a Box, on an axis of their own; None for one, without.
      make_norm: of the networks that are not a user's, see `networks.encoders.mlp`; None for no normalization.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: a setting does not fit the observations, or a network has another name or other outputs.
    """
    assert isinstance(action_space, Discrete | Box)
    box = isinstance(action_space, Box)
    names = {"policy"} | ({"critics"} if has_critics else set()) | ({"value"} if has_value else set())
    given = user_networks.by_name(networks, names)
    validation.check_encoder(config, obs_space, action_space)
    described = config.model_dump(include=set(combine.SETTINGS)) | {"make_norm": make_norm}
    size = actor_critic.policy_size(action_space)
    spread = spread if box else "none"
    alone, vector, check = np.array([], int), np.array([size]), partial(user_networks.checked, axis_name=axis_name)
    if "policy" in given:
        form, sizes = ("loc", vector) if spread == "none" else ("(loc, log_std)", (vector, vector))
        off = {"gsde": getattr(config, "gsde", False)}
        policy = check(given["policy"], obs_space, form if box else "logits", sizes, field="policy", described=off)
    else:
        policy = critics.policy_network(
            obs_space=obs_space,
            size=size,
            spread=spread,
            log_std_init=getattr(config, "initial_log_std", 0.0),
            log_std_min=log_std_min,
            **described,
        )
    value = None
    if not has_critics:
        return Networks(obs_space, action_space, policy, _NO_CRITICS, _NO_CRITICS, None)
    count = config.num_critics
    width = outputs if box else size
    if "critics" in given:
        action, sizes = (np.zeros(size, np.float32),) if box else (), alone if width is None else np.array([width])
        q = check(given["critics"], obs_space, "Q", sizes, *action, field="critics", count=count, privileged=True)
        first = q
    else:
        own = {
            "dropout": getattr(config, "critic_dropout", 0.0),
            "hidden_sizes": getattr(config, "critic_hidden_sizes", config.hidden_sizes),
            "layer_norm": config.layer_norm or getattr(config, "critic_layer_norm", False),
        }
        q, first = (critics.critics(obs_space=obs_space, count=n, size=width, **(described | own)) for n in (count, 1))
    if "value" in given:
        value = check(given["value"], obs_space, "V", alone, field="value", privileged=True)
    elif has_value:
        value = critics.state_value(obs_space=obs_space, **described)
    return Networks(obs_space, action_space, policy, q, first, value)


def init(networks: Networks, key: Key, obs: PyTree) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """The parameters and the statistics of the policy and of the critics, with a memory or without."""
    policy_key, critic_key = jax.random.split(key)
    action = () if isinstance(networks.action_space, Discrete) else (jnp.zeros((networks.size,)),)

    def start(network: Network) -> tuple[PyTree, ...]:
        return (jax.tree.map(jnp.asarray, network.memory),) if jax.tree.leaves(network.memory) else ()

    made = {
        "policy": networks.policy.init(policy_key, obs, *start(networks.policy)),
        "critics": networks.critics.init(critic_key, obs, *action, *start(networks.critics)),
    }
    return {name: params for name, (params, _) in made.items()}, {name: stats for name, (_, stats) in made.items()}


def distribution(
    networks: Networks, variables: Variables, obs_stats: PyTree, obs: PyTree, **training: Any
) -> tuple[Any, PyTree]:
    """The policy's distribution of raw actions for observations [...]; a tanh normal over [-1, 1] for a Box.

    With the policy's statistics; `training` are `train` and `key` of `Network.apply`.
    """
    output, stats = networks.policy.apply(*variables, normalize_obs(obs_stats, obs), **training)
    return action_distributions.distribution(networks.normalized_space, output, action_mask(obs), squash=True), stats


def q_values(
    networks: Networks, variables: Variables, obs_stats: PyTree, obs: PyTree, action: Array, **training: Any
) -> tuple[Array, PyTree]:
    """Q [K, ...] of normalized actions [..., D], or of actions [...] of a discrete space, and the critics' statistics.

    Critics with several outputs return [K, ..., outputs].
    `training` are `train` and `key` of `Network.apply`.
    """
    obs = normalize_obs(obs_stats, obs)
    if isinstance(networks.action_space, Discrete):
        every, stats = networks.critics.apply(*variables, obs, **training)
        return jax.vmap(pick, (0, None))(every, action), stats
    return networks.critics.apply(*variables, obs, action, **training)


def td_loss(q: Array, target: Array, weight: Array) -> tuple[Array, Array]:
    """Half the squared TD errors of Q [K, B], summed over the critics: the weighted mean []; and the priorities [B]."""
    td_error = q - target[None]
    loss = jnp.mean(weight * jnp.sum(jnp.square(td_error), axis=0)) / 2
    return loss, jax.lax.stop_gradient(jnp.mean(jnp.abs(td_error), axis=0))


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

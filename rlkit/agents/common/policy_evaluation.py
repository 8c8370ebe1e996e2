"""Policies with a value: acting, and evaluating a rollout, for any action space, feed-forward or recurrent."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common import action_distributions, exploration, user_networks, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.networks import views
from rlkit.networks.cores.recurrent import along
from rlkit.networks.features import action_mask
from rlkit.networks.heads import actor_critic
from rlkit.ops.chunked import chunked_map
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, leaf_spaces
from rlkit.types import Array, Key, Network, PyTree, Transition


class Policy(NamedTuple):
    """Static arguments of every function below."""

    obs_space: Space
    action_space: Space
    network: Network  # apply -> (outputs of the policy head, value), and the next memory where it is recurrent
    squash: bool = False  # tanh normal
    gsde: bool = False  # state-dependent exploration
    gsde_steps: int = 0  # until its noise is drawn anew; 0 holds it for the episode
    gsde_features: int = 0  # F, the width of the layer that the noise depends on

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.network.memory))


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree
    stats: PyTree
    obs_stats: PyTree


class Memory(NamedTuple):
    """Memory of the policy of one environment within an episode."""

    core: PyTree  # of a recurrent network
    noise: PyTree = ()  # gSDE: (standard normal [F, D], steps since it was drawn [] int32)


class Extras(NamedTuple):
    """Outputs of acting that learning needs."""

    raw: PyTree  # the action before clipping or tanh: [D] for a Box; () for a Discrete or MultiDiscrete
    log_prob: Array  # []
    core: PyTree  # a recurrent network's memory before the step
    intrinsic: Array | tuple = ()  # [] advantage of an exploration bonus, from the update on that computes it


class Evaluated(NamedTuple):
    """Outputs of the network for a rollout, all [T, N, ...]."""

    log_prob: Array
    value: Array
    next_value: Array
    dist: PyTree  # the distribution of raw actions


def make(
    config_class: type, config: Any, obs_space: Space, action_space: Space, networks: Any, axis_name: str | None = None
) -> Policy:
    """The policy that an agent's Config describes.

    Args:
      config_class: the agent's class `Config`.
      config: with the fields of `EncoderConfig`, `GaussianPolicyConfig` and the others of `heads.actor_critic`.
      obs_space, action_space: an environment's spaces.
      networks: a user's network, see `ppo.make`; None for the one that `config` describes.
      axis_name: of a mesh axis, see `training.data_parallel`; None for one device.

    Raises:
      ConfigError: the action space has no distribution, or a setting does not fit the spaces or the network.
    """
    needed = "a Discrete or MultiDiscrete action space or a Box of floats"
    parts = jax.tree.leaves(leaf_spaces(action_space)) if isinstance(action_space, Dict | Tuple) else []
    for space in parts or [action_space]:
        supported = action_distributions.supports(space)
        validation.check_action_space(config_class, config, space, supported=supported, needed=needed)
    if config.gsde:
        validation.check_box("gsde", action_space, bounded=False)
    if config.squash:
        for space in [space for space in parts if isinstance(space, Box)] or [action_space]:
            validation.check_box("squash", space, bounded=True)
    validation.check_encoder(config, obs_space, action_space)
    validation.check_gsde(config)
    if networks is None:
        described = config.model_dump(include=set(actor_critic.SETTINGS)) | {"log_std_init": config.initial_log_std}
        network = actor_critic.actor_critic(
            obs_space=obs_space,
            action_space=action_space,
            **described,
        )
    else:
        policy_form = user_networks.policy_form(action_space)
        check = partial(user_networks.checked, axis_name=axis_name)
        described, alone = {"gsde": config.gsde, "recurrent": config.recurrent}, np.array([], int)
        if isinstance(networks, Mapping):
            given = user_networks.by_name(networks, {"policy", "value"}, all_of=True)
            policy, value = (
                check(given["policy"], obs_space, *policy_form, field="policy", described=described),
                check(given["value"], obs_space, "V", alone, field="value", privileged=True),
            )
            network = views.joined(policy, value, obs_space)
        else:
            form, sizes = f"({policy_form[0]}, value)", (policy_form[1], alone)
            network = check(networks, obs_space, form, sizes, memory="optional", described=described)
    features = config.memory_size if config.recurrent != "none" else sum(config.hidden_sizes[-1:])
    return Policy(obs_space, action_space, network, config.squash, config.gsde, config.gsde_steps, features)


def start_memory(policy: Policy) -> Memory:
    """The memory at the start of an episode."""
    if not policy.gsde:
        return Memory(policy.network.memory)
    size = actor_critic.policy_size(policy.action_space)
    return Memory(policy.network.memory, exploration.gsde_start(policy.gsde_features, size))


def distribution(policy: Policy, output: PyTree, obs: PyTree) -> action_distributions.Distribution:
    """The distribution of raw actions, from the outputs of the policy head and the action mask in `obs`."""
    return action_distributions.distribution(policy.action_space, output, action_mask(obs), squash=policy.squash)


def apply(policy: Policy, actor: Actor, obs: PyTree, core: PyTree) -> tuple[PyTree, Array, PyTree]:
    """The network on observations [...]: the policy head's outputs and the value [...], in float32, and the memory."""
    obs = normalize_obs(actor.obs_stats, obs)
    memory = (core,) if policy.recurrent else ()
    output, value, *rest = policy.network.apply(actor.params, actor.stats, obs, *memory)[0]
    return output, value, rest[0] if rest else ()


def apply_in_training(
    policy: Policy, actor: Actor, obs: PyTree, start: Array, core: PyTree, key: Key
) -> tuple[PyTree, Array, PyTree]:
    """The policy head's outputs and the value, as in a loss, and the network's statistics.

    Args:
      policy, actor: the network, its parameters and statistics.
      obs: [B, ...], or for a recurrent network [T, B, ...].
      start: [T, B] marks the rows at which an episode begins; read by a recurrent network alone, as `core` is.
      core: [B, ...] the memory before the first row.
      key: for the network's noise.
    """
    obs = normalize_obs(actor.obs_stats, obs)
    if policy.recurrent:
        (output, value), _, stats = along(policy.network, *actor[:2], obs, start, core, train=True, key=key)
    else:
        (output, value), stats = policy.network.apply(*actor[:2], obs, train=True, key=key)
    return output, value, stats


def act(policy: Policy, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, Extras]:
    """One exploring step for one observation."""
    output, _, core = apply(policy, actor, obs, memory.core)
    dist = distribution(policy, output, obs)
    noise = memory.noise
    if policy.gsde:
        raw, noise = exploration.gsde_step(output, noise, policy.gsde_steps, key)
    else:
        raw = action_distributions.sample(dist, key)
    log_prob = action_distributions.log_prob(dist, raw)
    extras = Extras(() if _is_raw(policy.action_space) else raw, log_prob, memory.core)
    return Memory(core, noise), action_distributions.action(policy.action_space, raw, squash=policy.squash), extras


def act_greedily(policy: Policy, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    output, _, core = apply(policy, actor, obs, memory.core)
    raw = action_distributions.mode(distribution(policy, output, obs))
    action = action_distributions.action(policy.action_space, raw, squash=policy.squash)
    return Memory(core, memory.noise), action, ()


def _is_raw(space: Space) -> bool:
    """True where an action is its own raw action."""
    return isinstance(space, Discrete | MultiDiscrete)


def raw_action(policy: Policy, rollout: Transition) -> PyTree:
    """The actions [T, N, ...] whose log-probs count."""
    return rollout.action if _is_raw(policy.action_space) else rollout.extras.raw


def episode_starts(rollout: Transition) -> Array:
    """[T, N] bool, the rows after the first at which an episode begins."""
    done = rollout.terminated | rollout.truncated
    return jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])


def memories(policy: Policy, actor: Actor, rollout: Transition) -> PyTree:
    """A recurrent network's memory before each step [T, N, ...], computed anew from the one before the first."""
    if not policy.recurrent:
        return rollout.extras.core
    first = jax.tree.map(lambda x: x[0], rollout.extras.core)
    obs = normalize_obs(actor.obs_stats, rollout.obs)
    return along(policy.network, *actor[:2], obs, episode_starts(rollout), first)[1]


def evaluate(
    policy: Policy, actor: Actor, rollout: Transition, core: PyTree, chunk_size: int | None, *, keep_dist: bool
) -> Evaluated:
    """Log-probs, values and next values of a rollout, in chunks of rows: its memory does not grow with the rollout.

    Args:
      policy, actor: the network and its parameters.
      rollout: [T, N, ...].
      core: [T, N, ...] a recurrent network's memory before each row. The next value takes it one step further.
      chunk_size: rows at once; None for all.
      keep_dist: whether to return the distributions; else `dist` is ().
    """
    shape = rollout.reward.shape

    def rows(batch):
        obs, next_obs, raw, core = batch
        output, value, after = apply(policy, actor, obs, core)
        next_value = apply(policy, actor, next_obs, after)[1]
        dist = distribution(policy, output, obs)
        return Evaluated(action_distributions.log_prob(dist, raw), value, next_value, dist if keep_dist else ())

    batch = rollout.obs, rollout.next_obs, raw_action(policy, rollout), core
    flat = chunked_map(rows, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch), chunk_size)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), flat)

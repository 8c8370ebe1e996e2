"""How an actor-critic acts, and what its network says of a rollout: any action space, feed-forward or recurrent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlkit.agents.common import action_distributions, exploration
from rlkit.agents.common.normalization import normalize_obs
from rlkit.networks.features import action_mask
from rlkit.networks.recurrent import along
from rlkit.ops.chunked import chunked_map
from rlkit.spaces import Box, Space
from rlkit.types import Array, Key, Network, PyTree, Transition


class Policy(NamedTuple):
    """The static surroundings of every function below."""

    obs_space: Space
    action_space: action_distributions.ActionSpace
    network: Network  # apply -> (outputs of the policy head, value), and the next memory where it is recurrent
    squash: bool = False  # tanh normal
    gsde: bool = False  # state-dependent exploration
    gsde_steps: int = 0  # until its noise is drawn anew; 0 holds it for the episode

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.network.memory))


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree
    obs_stats: PyTree


class Memory(NamedTuple):
    """What the policy of one environment remembers within an episode."""

    core: PyTree  # of a recurrent network
    noise: PyTree = ()  # gSDE: (standard normal [F, D], steps since it was drawn [] int32)


class Extras(NamedTuple):
    """What learning wants back from acting."""

    raw: PyTree  # [D] the action before clipping or tanh, for a Box; else ()
    log_prob: Array  # []
    core: PyTree  # a recurrent network's memory before the step


class Evaluated(NamedTuple):
    """What the network says of a rollout, all [T, N, ...]."""

    log_prob: Array
    value: Array
    next_value: Array
    dist: PyTree  # the distribution of raw actions


def start_memory(policy: Policy, gsde_features: int = 0) -> Memory:
    """The memory at the start of an episode; `gsde_features` is F, the width of the layer that gSDE looks at."""
    if not policy.gsde:
        return Memory(policy.network.memory)
    size = action_distributions.policy_size(policy.action_space)
    return Memory(policy.network.memory, exploration.gsde_start(gsde_features, size))


def distribution(policy: Policy, output: PyTree, obs: PyTree) -> action_distributions.Distribution:
    """The distribution of raw actions, from what the policy head returned and the action mask in `obs`."""
    return action_distributions.distribution(policy.action_space, output, action_mask(obs), squash=policy.squash)


def apply(policy: Policy, actor: Actor, obs: PyTree, core: PyTree) -> tuple[PyTree, Array, PyTree]:
    """The network on observations [...]: the policy head's output and the value [...], in float32, and the memory."""
    obs = normalize_obs(policy.obs_space, actor.obs_stats, obs)
    output, value, *rest = policy.network.apply(actor.params, obs, *((core,) if policy.recurrent else ()))
    return *_at_least_float32((output, value)), (rest[0] if rest else ())


def apply_along(policy: Policy, actor: Actor, obs: PyTree, start: Array, core: PyTree) -> tuple[PyTree, Array, PyTree]:
    """`apply` on a batch [B, ...], or for a recurrent network along [T, B, ...] from the memory `core` [B, ...].

    `start` [T, B] marks the rows at which an episode begins. A recurrent network's memory comes back as it was before
    each row.
    """
    if not policy.recurrent:
        return apply(policy, actor, obs, ())
    seen = normalize_obs(policy.obs_space, actor.obs_stats, obs)
    (output, value), before = along(policy.network, actor.params, seen, start, core)
    return *_at_least_float32((output, value)), before


def _at_least_float32(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)


def act(policy: Policy, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, Extras]:
    """One exploring step for one observation."""
    output, _, core = apply(policy, actor, obs, memory.core)
    dist = distribution(policy, output, obs)
    noise = memory.noise
    if policy.gsde:
        raw, noise = exploration.gsde_step(output, noise, policy.gsde_steps, key)
    else:
        raw = action_distributions.sample(dist, key)
    extras = Extras(
        raw if isinstance(policy.action_space, Box) else (), action_distributions.log_prob(dist, raw), memory.core
    )
    return Memory(core, noise), action_distributions.action(policy.action_space, raw, squash=policy.squash), extras


def act_greedily(policy: Policy, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, PyTree, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    output, _, core = apply(policy, actor, obs, memory.core)
    raw = action_distributions.mode(distribution(policy, output, obs))
    return Memory(core, memory.noise), action_distributions.action(policy.action_space, raw, squash=policy.squash), ()


def raw_action(policy: Policy, rollout: Transition) -> Array:
    """The actions [T, N, ...] whose log-probs count."""
    return rollout.extras.raw if isinstance(policy.action_space, Box) else rollout.action


def evaluate(
    policy: Policy, actor: Actor, rollout: Transition, core: PyTree, chunk_size: int | None, *, keep_dist: bool
) -> Evaluated:
    """What the network says of a rollout, in chunks of rows, so that its memory does not grow with the rollout.

    Args:
      policy, actor: the network and its parameters.
      rollout: [T, N, ...].
      core: [T, N, ...] a recurrent network's memory before each row. The next value is found by advancing it over obs.
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

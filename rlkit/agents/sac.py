"""Soft actor-critic (Haarnoja et al. 2018b), for bounded boxes and for discrete spaces (Christodoulou 2019).

A gradient step lowers the sum of three losses over transitions drawn from a replay buffer, each by its own parameters:

    critics      E[ w (Q_k(o, a) - y)^2 / 2 ],  y = r + γ^n (min_k Q_target_k(o', a') - α log π(a'|o')),  a' ~ π(o')
    policy       E[ α log π(a|o) - min_k Q_k(o, a) ],  a ~ π(o)
    temperature  E[ log α (H - H_target) ],  H = -log π(a|o)

In a discrete space the expectations over actions are sums, and H_target is a share of the log of the number of legal
actions; in a box it is a number for each dimension, of actions in [-1, 1]. Where it departs from the papers: n-step
targets, prioritized replay by the critics' mean |TD error|, state-dependent exploration (Raffin et al. 2021), each by a
field. Time limits are bootstrapped from the true final observation.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents.common import action_distributions, config, exploration, off_policy, q_critics, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Batch, State
from rlkit.agents.common.q_critics import Parts
from rlkit.networks.features import action_mask
from rlkit.ops.distributions import Categorical, TanhNormal
from rlkit.spaces import Box, Space
from rlkit.types import Agent, Array, Key, PyTree, Scalar, Transition


class Config(config.Control):
    """What shapes the program. Static and hashable."""

    learn_temperature: bool = Field(True, description="towards the target entropy; false keeps the start value")
    log_std_init: Annotated[float, Interval(ge=-20.0, le=2.0)] = Field(
        0.0, description="log standard deviation at the start, for a Box"
    )
    gsde: bool = Field(False, description="state-dependent exploration, held over steps, for a Box")
    gsde_steps: int = Field(0, ge=0, description="steps until its noise is drawn anew; 0 holds it for the episode")


class Hyper(config.LearningHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    temperature: Annotated[config.Positive, "weight of the entropy at the start"] = 1.0
    target_entropy: Annotated[Scalar, "nats for each dimension of a Box, of actions in [-1, 1]"] = -1.0
    target_entropy_share: Annotated[
        Scalar, Interval(ge=0.0, le=1.0), "of the log of the number of legal actions, in a discrete space"
    ] = 0.7


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree  # of the policy
    obs_stats: PyTree
    warming: Array  # [] bool, whether actions are still drawn uniformly


class Outlook(NamedTuple):
    """What a policy makes of observations [...], by a sample of actions, or exactly in a discrete space."""

    value: Array  # [...] E[min_k Q_k(o, a)]
    entropy: Array  # [...] nats


def outlook(parts: Parts, params: PyTree, critic_params: PyTree, stats: PyTree, obs: PyTree, key: Key) -> Outlook:
    """The value and the entropy of the policy with `params`, by critics with `critic_params`."""
    networks = parts.networks
    dist = q_critics.distribution(networks, params, stats, obs)
    if isinstance(dist, Categorical):
        rates = networks.critics.apply(critic_params, normalize_obs(networks.obs_space, stats, obs)).min(0)
        return Outlook(jnp.sum(dist.probs * rates, axis=-1), dist.entropy())
    assert isinstance(dist, TanhNormal)
    raw = dist.sample_pre_tanh(key)
    rates = q_critics.rate(networks, critic_params, stats, obs, dist.squash(raw))
    return Outlook(rates.min(0), -dist.log_prob_pre_tanh(raw))


def target_entropy(parts: Parts, hyper: Hyper, obs: PyTree) -> Array:
    """What the policy's entropy is led to, [] or, where actions are masked, [...], in nats."""
    if isinstance(parts.networks.action_space, Box):
        return jnp.asarray(hyper.target_entropy) * parts.networks.size
    mask = action_mask(obs)
    legal = jnp.float32(parts.networks.size) if mask is None else jnp.sum(mask, axis=-1, dtype=jnp.float32)
    return hyper.target_entropy_share * jnp.log(jnp.maximum(legal, 1.0))


def loss(parts: Parts, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The sum [] of the three losses, whose gradients do not meet, the priorities [B], and metrics."""
    hyper, stats, still = state.hyper, state.normalizer.obs, jax.lax.stop_gradient
    next_key, key = jax.random.split(key)
    temperature = still(jnp.exp(params["log_temperature"]))

    ahead = outlook(parts, still(params["policy"]), state.target_params, stats, batch.next_obs, next_key)
    bootstrap = ahead.value + temperature * ahead.entropy
    target = still(batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * bootstrap))
    action = q_critics.seen(parts.networks, batch.action)
    error = q_critics.rate(parts.networks, params["critics"], stats, batch.obs, action) - target[None]
    critic_loss = jnp.mean(batch.weight * jnp.sum(jnp.square(error), axis=0)) / 2

    now = outlook(parts, params["policy"], still(params["critics"]), stats, batch.obs, key)
    policy_loss = -jnp.mean(now.value + temperature * now.entropy)

    excess = still(jnp.mean(now.entropy - target_entropy(parts, hyper, batch.obs)))
    temperature_loss = params["log_temperature"] * excess if parts.config.learn_temperature else jnp.zeros(())
    metrics = {
        "critic_loss": critic_loss,
        "policy_loss": policy_loss,
        "temperature": temperature,
        "entropy": jnp.mean(now.entropy),
        "q": jnp.mean(now.value),
    }
    priority = still(jnp.mean(jnp.abs(error), axis=0))
    return critic_loss + policy_loss + temperature_loss, (priority, metrics)


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    params = q_critics.init(parts.networks, key, example.obs) | {
        "log_temperature": jnp.log(jnp.float32(hyper.temperature))
    }
    return off_policy.init(parts, hyper, example, num_envs, params, params["critics"])


def actor(parts: Parts, state: State) -> Actor:
    """What acting needs of the state."""
    warming = state.replay.num_steps < jnp.uint32(parts.config.learning_starts)
    return Actor(state.params["policy"], state.normalizer.obs, warming)


def act(parts: Parts, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, tuple]:
    """One exploring step for one observation: a sample of the policy; in a Box uniform until learning starts.

    With gSDE it is the policy's from the beginning: its noise, held over steps, reaches what independent draws do not.
    """
    sample_key, warm_key = jax.random.split(key)
    space = parts.networks.action_space
    if parts.config.gsde:
        output = parts.networks.policy.apply(actor.params, normalize_obs(parts.obs_space, actor.obs_stats, obs))
        raw, memory = exploration.gsde_step(output, memory, parts.config.gsde_steps, sample_key)
    else:
        dist = q_critics.distribution(parts.networks, actor.params, actor.obs_stats, obs)
        raw = action_distributions.sample(dist, sample_key)
    action = action_distributions.action(space, raw, squash=True)
    if isinstance(space, Box) and not parts.config.gsde:
        action = exploration.warm_up(space, warm_key, action, actor.warming)
    return memory, action, ()


def policy(parts: Parts, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    dist = q_critics.distribution(parts.networks, actor.params, actor.obs_stats, obs)
    return (
        memory,
        action_distributions.action(parts.networks.action_space, action_distributions.mode(dist), squash=True),
        (),
    )


def make(config: Config, obs_space: Space, action_space: Space) -> Agent:
    """SAC for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.

    Raises:
      ConfigError: the action space is neither Discrete nor a Box with finite bounds, or a setting does not fit.
    """
    if config.gsde:
        validation.needs_box("gsde", action_space, bounded=True)
        validation.gsde_has_features(config)
    spread = "features" if config.gsde else "observation"
    networks = q_critics.make(config, obs_space, action_space, name="sac", discrete=True, spread=spread)
    parts = Parts(config, networks, off_policy.buffer(config))
    return off_policy.agent(
        parts,
        init,
        actor,
        act,
        policy,
        loss=loss,
        tracked=lambda params: params["critics"],
        rows=config.n_step,
        memory=exploration.gsde_start(config.hidden_sizes[-1], networks.size) if config.gsde else (),
    )

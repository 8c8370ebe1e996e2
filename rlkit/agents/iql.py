"""Implicit Q-learning, IQL (Kostrikov et al. 2022), to learn from a dataset alone; it can go on with an environment.

A gradient step lowers the sum of three losses over transitions drawn from a replay buffer, each by its own parameters:

    value    E[ |τ - 1(u < 0)| u^2 ],  u = min_k Q_target_k(o, a) - V(o)     (expectile regression, eq. 5)
    critics  E[ w (Q_k(o, a) - r - γ^n V(o'))^2 / 2 ]                        (eq. 6)
    policy   E[ -min(exp(β u), 100) log π(a|o) ]                             (advantage-weighted regression, eq. 7)

so that no action outside of the data is ever rated. The policy of a bounded box is a normal whose mean is squashed into
it and whose deviation does not depend on the observation; that of a discrete space is categorical. Time limits are
bootstrapped from the true final observation.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit.agents.common import action_distributions, config, off_policy, q_critics
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Batch, State
from rlkit.agents.common.q_critics import Parts
from rlkit.networks.features import action_mask
from rlkit.ops.distributions import DiagNormal
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Scalar, Transition

MAX_WEIGHT = 100.0  # of a sample in the policy's loss


class Config(config.Control):
    """What shapes the program. Static and hashable."""

    normalize_obs: bool = True
    learning_starts: Annotated[int, Interval(ge=0, lt=2**32)] = Field(
        0, description="environment steps before the first gradient step"
    )


class Hyper(config.LearningHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    expectile: Annotated[Scalar, Interval(gt=0.0, lt=1.0), "of the values; 0.5 is their mean"] = 0.7
    advantage_weight: Annotated[Scalar, Interval(ge=0.0), "0 clones the data, more prefers what is better"] = 3.0


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree  # of the policy
    obs_stats: PyTree


def distribution(parts: Parts, params: PyTree, stats: PyTree, obs: PyTree) -> action_distributions.Distribution:
    """The policy's actions for observations [...], as critics see them."""
    output = parts.networks.policy.apply(params, normalize_obs(parts.obs_space, stats, obs))
    if isinstance(parts.networks.action_space, Discrete):
        return action_distributions.distribution(parts.networks.action_space, output, action_mask(obs), squash=False)
    loc, log_std = output
    return DiagNormal(jnp.tanh(loc), jnp.exp(log_std))


def loss(parts: Parts, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The sum [] of the three losses, whose gradients do not meet, the priorities [B], and metrics. No key is used."""
    hyper, stats, networks, still = state.hyper, state.normalizer.obs, parts.networks, jax.lax.stop_gradient
    action = q_critics.seen(networks, batch.action)
    obs, next_obs = (normalize_obs(parts.obs_space, stats, x) for x in (batch.obs, batch.next_obs))
    q = q_critics.rate(networks, state.target_params, stats, batch.obs, action).min(0)
    advantage = q - parts.networks.value.apply(params["value"], obs)[0]
    value_loss = jnp.mean(
        batch.weight * jnp.where(advantage < 0, 1.0 - hyper.expectile, hyper.expectile) * jnp.square(advantage)
    )

    next_value = still(parts.networks.value.apply(params["value"], next_obs)[0])
    target = batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * next_value)
    error = q_critics.rate(networks, params["critics"], stats, batch.obs, action) - target[None]
    critic_loss = jnp.mean(batch.weight * jnp.sum(jnp.square(error), axis=0)) / 2

    preference = jnp.minimum(jnp.exp(jnp.minimum(hyper.advantage_weight * still(advantage), 10.0)), MAX_WEIGHT)
    log_prob = action_distributions.log_prob(distribution(parts, params["policy"], stats, batch.obs), action)
    policy_loss = -jnp.mean(batch.weight * preference * log_prob)
    metrics = {
        "value_loss": value_loss,
        "critic_loss": critic_loss,
        "policy_loss": policy_loss,
        "q": jnp.mean(q),
        "advantage": jnp.mean(advantage),
    }
    priority = still(jnp.mean(jnp.abs(error), axis=0))
    return value_loss + critic_loss + policy_loss, (priority, metrics)


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    key, value_key = jax.random.split(key)
    params = q_critics.init(parts.networks, key, example.obs) | {
        "value": parts.networks.value.init(value_key, example.obs)
    }
    return off_policy.init(parts, hyper, example, num_envs, params, params["critics"])


def actor(parts: Parts, state: State) -> Actor:
    """What acting needs of the state."""
    return Actor(state.params["policy"], state.normalizer.obs)


def act(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a sample of the policy."""
    dist = distribution(parts, actor.params, actor.obs_stats, obs)
    return memory, q_critics.taken(parts.networks, action_distributions.sample(dist, key)), ()


def policy(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the mode of the policy. The key is not used."""
    dist = distribution(parts, actor.params, actor.obs_stats, obs)
    return memory, q_critics.taken(parts.networks, action_distributions.mode(dist)), ()


def make(config: Config, obs_space: Space, action_space: Space) -> Agent:
    """IQL for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.

    Raises:
      ConfigError: the action space is neither Discrete nor a Box with finite bounds, or a setting does not fit.
    """
    networks = q_critics.make(config, obs_space, action_space, name="iql", discrete=True, spread="constant")
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
    )

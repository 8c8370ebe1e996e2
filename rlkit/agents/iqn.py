"""Implicit quantile networks, IQN (Dabney et al. 2018b): DQN with the quantile function of the returns.

The network gives the quantile z(o, a, τ) of the return at any fraction τ. A gradient step draws N fractions τ_i and N'
fractions τ'_j uniformly for each transition of a replay buffer, and minimizes (equation 3)

    E[ w Σ_i mean_j |τ_i - 1[u_ij < 0]| huber(u_ij) ],   u_ij = r + γ^n z_target(o', a*, τ'_j) - z(o, a, τ_i)

where a* maximizes Q(o', a), the mean over K fractions. With `munchausen` (M-IQN, Vieillard et al. 2020) a softmax of
the target network's Q takes the place of a*, and the log-probability of the action taken is a bonus: u_ij is

    r + α clip(τ log π(a|o), l_0, 0) + γ^n Σ_a' π(a'|o') (z_target(o', a', τ'_j) - τ log π(a'|o')) - z(o, a, τ_i)

with π = softmax(Q_target / τ) over the legal actions, whose temperature τ is not a fraction. With n-step returns the
bonus is that of the first action alone, and the entropy that of the last observation alone: a replayed action's bonus
would need the target network at every step between. The other fields are those of `dqn`.

Departures from the papers: Q in targets and in greedy actions is the mean at the midpoints of K equal shares, a rule
without noise, where IQN draws K fractions; actions that explore draw them. The features that fractions are multiplied
with are those of the last hidden layer. The Huber loss is not divided by its threshold, which is 1 in the papers.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field, model_validator

from rlkit.agents import dqn
from rlkit.agents.base import as_arrays
from rlkit.agents.base.keys import Unused
from rlkit.agents.common import exploration, off_policy, q_learning, user_networks, validation
from rlkit.agents.common.batches import Batch
from rlkit.agents.common.config import InNetwork, QLearningConfig, Width
from rlkit.agents.common.hyper import EpsilonHyper, FinitePositive, OffPolicyHyper, Positive
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import State
from rlkit.agents.common.policy_evaluation import Actor as Values
from rlkit.agents.common.q_learning import Actor, Static
from rlkit.networks.features import action_mask
from rlkit.networks.heads import implicit_quantiles
from rlkit.ops._arrays import pick
from rlkit.ops.distributional import quantile_q_learning
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, PyTree, Scalar, Transition


class Config(QLearningConfig):
    double: bool = Field(default=False, description="the online network selects the next action; not with munchausen")
    dueling: Annotated[bool, InNetwork] = False
    munchausen: bool = Field(
        default=False, description="a bonus for the log-probability of the action, and soft targets"
    )
    num_quantiles: Width = Field(default=64, description="N, fractions of a transition whose quantiles learn")
    num_target_quantiles: Width = Field(default=64, description="N', fractions of a transition's target")
    num_value_quantiles: Width = Field(default=32, description="K, fractions whose mean is the value of an action")
    num_cosines: Annotated[Width, InNetwork] = Field(
        default=64, description="n, cosines in the embedding of a fraction"
    )

    @model_validator(mode="after")
    def _one_next_policy(self) -> "Config":
        if self.double and self.munchausen:
            raise ValueError("double=True selects one next action, and munchausen=True averages over all; use one")
        return self


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    huber_delta: Annotated[Positive, "kappa of the paper"] = 1.0
    max_grad_norm: Positive = 10.0
    munchausen_alpha: Annotated[
        Scalar, Interval(ge=0.0, le=1.0), "share of the log-probability in the bonus", Unused(munchausen=False)
    ] = 0.9
    munchausen_clip: Annotated[
        Scalar,
        Interval(gt=-jnp.inf, le=0.0),
        "l_0, the least scaled log-probability in the bonus",
        Unused(munchausen=False),
    ] = -1.0
    temperature: Annotated[
        FinitePositive, "of the softmax of munchausen, and the scale of its log-probabilities", Unused(munchausen=False)
    ] = 0.03


def quantiles(
    static: Static, network: Values | Actor, obs: PyTree, fractions: Array | np.ndarray, **training: Any
) -> tuple[Array, PyTree]:
    """The quantiles [..., K, A] float32 of observations [...] at fractions [..., K], or [K] for all of them.

    With the network's statistics; `training` are `train` and `key` of `Network.apply`.
    """
    obs = normalize_obs(network.obs_stats, obs)
    return static.network.apply(network.params, network.stats, obs, fractions, **training)


def values(static: Static, network: Values | Actor, obs: PyTree) -> Array:
    """The values [..., A] of observations [...], means of their quantiles at K midpoints."""
    return quantiles(static, network, obs, midpoints(static.config.num_value_quantiles))[0].mean(-2)


def target_network(state: State) -> Values:
    """The target network of a state."""
    return Values(state.target_params, state.target_stats, state.normalizer.obs)


def midpoints(count: int) -> np.ndarray:
    """The midpoints [count] float32 of equal shares of [0, 1]."""
    return ((np.arange(count) + 0.5) / count).astype(np.float32)


def soft_policy(q: Array, mask: Array | None, temperature: Scalar) -> tuple[Array, Array]:
    """The softmax of values over a temperature, and its log-probabilities times the temperature.

    They are computed from the distances to the largest value, which stay exact at small temperatures (Vieillard et al.
    2020, appendix B.1).

    Args:
      q: [..., A] float, the values.
      mask: [..., A] bool, the legal actions; None where all are.
      temperature: scalar > 0.

    Returns:
      [..., A] the probabilities, 0 for illegal actions, and [..., A] the scaled log-probabilities, which are to be read
      for legal actions alone.
    """
    q = exploration.mask_illegal(q, mask)
    distance = q - jnp.max(q, axis=-1, keepdims=True)
    log_total = jax.nn.logsumexp(distance / temperature, axis=-1, keepdims=True)
    return jax.nn.softmax(distance / temperature, axis=-1), distance - temperature * log_total


def greedy_targets(static: Static, params: PyTree, state: State, batch: Batch, next_quantiles: Array) -> Array:
    """The quantiles [B, N'] of the greedy next action, among `next_quantiles` [B, N', A]."""
    online = Values(jax.lax.stop_gradient(params), state.stats, state.normalizer.obs)
    q = values(static, online if static.config.double else target_network(state), batch.next_obs)
    action = exploration.greedy(static.action_space, q, action_mask(batch.next_obs)).astype(jnp.int32)
    return pick(next_quantiles, jnp.broadcast_to(action[:, None], next_quantiles.shape[:-1]))


def soft_targets(static: Static, state: State, batch: Batch, next_quantiles: Array) -> Array:
    """The quantiles [B, N'] of the next return with its entropy, averaged over the next action of the soft policy."""
    q = values(static, target_network(state), batch.next_obs)
    probs, scaled_log = soft_policy(q, action_mask(batch.next_obs), state.hyper.temperature)
    # A select: the quantiles of illegal actions, which nothing trains, are not read; 0 times infinity is NaN.
    return jnp.sum(jnp.where(probs[:, None] > 0, probs[:, None] * (next_quantiles - scaled_log[:, None]), 0.0), axis=-1)


def bonus(static: Static, state: State, batch: Batch) -> Array:
    """Munchausen's bonus [B]: the clipped log-probability of the actions taken, by the target network."""
    q = values(static, target_network(state), batch.obs)
    _, scaled_log = soft_policy(q, action_mask(batch.obs), state.hyper.temperature)
    return state.hyper.munchausen_alpha * jnp.clip(pick(scaled_log, batch.action), state.hyper.munchausen_clip, 0.0)


def loss(static: Static, params: PyTree, state: State, batch: Batch, key: Key) -> tuple[Array, tuple]:
    """The loss [] of a batch; the network's statistics, the batch's priorities [B], and metrics."""
    online_key, target_key, network_key = jax.random.split(key, 3)
    config, online = static.config, Values(params, state.stats, state.normalizer.obs)
    num_items = batch.reward.shape[0]
    fractions = jax.random.uniform(online_key, (num_items, config.num_quantiles), jnp.float32)
    next_fractions = jax.random.uniform(target_key, (num_items, config.num_target_quantiles), jnp.float32)
    now, stats = quantiles(static, online, batch.obs, fractions, train=True, key=network_key)  # [B, N, A]
    now = pick(now, jnp.broadcast_to(batch.action[:, None], fractions.shape))  # [B, N]
    later, _ = quantiles(static, target_network(state), batch.next_obs, next_fractions)  # [B, N', A]
    reward = batch.reward
    if config.munchausen:
        later = soft_targets(static, state, batch, later)
        reward = reward + bonus(static, state, batch)
    else:
        later = greedy_targets(static, params, state, batch, later)
    # The next action has been chosen, so the axis of actions has length 1. The op ends the target at terminal states.
    only = jnp.zeros_like(batch.action, jnp.int32)
    per_item = quantile_q_learning(
        now[..., None],
        fractions,
        only,
        reward,
        batch.discount,
        later[..., None],
        later[..., None],
        kappa=state.hyper.huber_delta,
    )
    total = jnp.mean(batch.weight * per_item)
    priority = jax.lax.stop_gradient(per_item)
    return total, (stats, priority, {"loss": total, "q": jnp.mean(now), "priority": priority.mean()})


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    hyper = as_arrays(hyper, static.config, num_envs)
    return off_policy.init(static, hyper, example, num_envs, static.network.init(key, example.obs, midpoints(1)))


def act(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: the best mean of K quantiles, at random fractions, or a random action."""
    fractions_key, explore_key = jax.random.split(key)
    fractions = jax.random.uniform(fractions_key, (static.config.num_value_quantiles,), jnp.float32)
    q = quantiles(static, actor, obs, fractions)[0].mean(-2)
    action = exploration.epsilon_greedy(explore_key, static.action_space, q, action_mask(obs), actor.epsilon)
    return memory, action, ()


def policy(static: Static, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest mean, at the midpoints. The key is not used."""
    q = values(static, actor, obs)
    return memory, exploration.greedy(static.action_space, q, action_mask(obs)), ()


supports = dqn.supports
gradient_step = partial(dqn.gradient_step, loss=loss)
update = partial(off_policy.update, gradient_step)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """IQN for these spaces.

    Arguments and errors are those of `dqn.make`, but a network maps observations and fractions, [..., K] or [K], to
    quantiles [..., K, A].
    """
    supported, needed = supports(action_space), "a Discrete action space"
    validation.check_action_space(Config, config, action_space, supported=supported, needed=needed)
    assert isinstance(action_space, Discrete)
    validation.check_encoder(config, obs_space, action_space)
    if networks is None:
        described = config.model_dump(include=set(implicit_quantiles.SETTINGS))
        network = implicit_quantiles.implicit_quantiles(obs_space=obs_space, num_actions=action_space.n, **described)
    else:
        sizes = np.array([config.num_value_quantiles, action_space.n])
        fractions = midpoints(config.num_value_quantiles)
        network = user_networks.checked(
            networks, obs_space, "the quantiles of each action", sizes, fractions, axis_name=axis_name
        )
    static = Static(config, obs_space, action_space, network, off_policy.buffer(config, axis_name), axis_name)
    return q_learning.agent(static, init=init, act=act, policy=policy, gradient_step=gradient_step)

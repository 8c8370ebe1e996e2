"""Parallelized Q-network, PQN (Gallici et al. 2025): Q(λ) over many environments, without replay and target network.

An update lowers, over several epochs of minibatches of a rollout,

    E[ (Q(o_t, a_t) - G_t)^2 / 2 ],  G_t = r_t + γ [(1 - λ) max_a Q(o_{t+1}, a) + λ G_{t+1}]

with the λ-returns (algorithm 1) computed once, under the parameters before the update. Layer normalization stands in
for the target network. Where it departs from the paper: Adam in place of RAdam, no normalization after convolutions,
and time limits are bootstrapped from the true final observation.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from flax import struct
from pydantic import Field, PositiveInt

from rlkit.agents.common import config, exploration, minibatches, normalization, validation
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.optimizer import Descent
from rlkit.networks import q_network
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.chunked import chunked_map
from rlkit.ops.returns import lambda_returns
from rlkit.ops.schedules import Schedule, schedule
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, Network, PyTree, Scalar, Transition


class Config(config.Torso):
    """What shapes the program. Static and hashable."""

    layer_norm: bool = Field(True, description="after each dense layer; convolutions have none")
    dueling: bool = False
    num_epochs: PositiveInt = 2
    num_minibatches: PositiveInt = 4
    chunk_size: PositiveInt | None = Field(8192, description="rows that pass the network at once; null for all")
    learning_rate_schedule: Schedule = "constant"


class Hyper(config.EpsilonHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    learning_rate: Annotated[Scalar, Interval(ge=0.0)] = 2.5e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    q_lambda: Annotated[Scalar, Interval(ge=0.0, le=1.0), "0 is one-step Q-learning"] = 0.65
    max_grad_norm: Annotated[config.Positive, "global norm"] = 10.0
    adam_eps: config.Positive = 1e-5
    schedule_steps: Annotated[config.Positive, "environment steps that the schedules last"] = jnp.inf


class State(struct.PyTreeNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    opt_state: PyTree
    normalizer: Normalizer
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree
    obs_stats: PyTree
    epsilon: Array  # [], the probability of a random action


class Batch(NamedTuple):
    """What the loss is computed from, leaves [B, ...]."""

    obs: PyTree
    action: Array
    target: Array


class Parts(NamedTuple):
    """The static surroundings of the functions below."""

    config: Config
    obs_space: Space
    action_space: Discrete
    network: Network


METRICS: tuple[str, ...] = ("loss", "q", "grad_norm")


def apply(parts: Parts, params: PyTree, stats: PyTree, obs: PyTree) -> Array:
    """Q [..., A] of observations [...], in float32."""
    q = parts.network.apply(params, normalize_obs(parts.obs_space, stats, obs))
    return q.astype(jnp.promote_types(q.dtype, jnp.float32))


def loss(parts: Parts, params: PyTree, state: State, batch: Batch) -> tuple[Array, dict[str, Array]]:
    """The loss [] of a minibatch, and its metrics."""
    q = pick(apply(parts, params, state.normalizer.obs, batch.obs), batch.action)
    total = jnp.mean(jnp.square(q - batch.target)) / 2
    return total, {"loss": total, "q": jnp.mean(q)}


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    params = parts.network.init(key, example.obs)
    return State(
        hyper=jax.tree.map(lambda x: jnp.array(x, jnp.float32), hyper),  # copies, so that the state can be donated
        params=params,
        opt_state=Descent.of(hyper, 0.0).init(params),
        normalizer=normalization.init(parts.obs_space, example, num_envs, obs=parts.config.normalize_obs, reward=False),
        num_steps=jnp.zeros((), jnp.uint32),
    )


def actor(state: State) -> Actor:
    """What acting needs of the state."""
    return Actor(state.params, state.normalizer.obs, exploration.epsilon(state.hyper, state.num_steps))


def act(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One exploring step for one observation: a random action with probability epsilon."""
    q = apply(parts, actor.params, actor.obs_stats, obs)
    return memory, exploration.epsilon_greedy(key, parts.action_space, q, action_mask(obs), actor.epsilon), ()


def policy(parts: Parts, actor: Actor, memory: tuple, obs: PyTree, key: Key) -> tuple[tuple, Array, tuple]:
    """One step for one observation: the action of the largest value. The key is not used."""
    q = apply(parts, actor.params, actor.obs_stats, obs)
    return memory, exploration.greedy(parts.action_space, q, action_mask(obs)), ()


def targets(parts: Parts, state: State, rollout: Transition) -> Array:
    """The λ-returns [T, N] of a rollout, its next values computed in chunks of rows."""

    def best(next_obs: PyTree) -> Array:
        q = apply(parts, state.params, state.normalizer.obs, next_obs)
        return pick(q, exploration.greedy(parts.action_space, q, action_mask(next_obs)))  # finite also if none is legal

    flat = minibatches.flat(rollout.next_obs)
    next_value = chunked_map(best, flat, parts.config.chunk_size).reshape(rollout.reward.shape)
    hyper = state.hyper
    return lambda_returns(
        rollout.reward, next_value, rollout.terminated, rollout.truncated, gamma=hyper.gamma, lambda_=hyper.q_lambda
    )


def update(parts: Parts, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...]; the metrics are means over the minibatches."""
    config, hyper = parts.config, state.hyper
    num_steps, num_envs = rollout.reward.shape
    check(parts, num_envs, num_steps)
    progress = state.num_steps.astype(jnp.float32) / hyper.schedule_steps
    descent = Descent.of(hyper, hyper.learning_rate * schedule(config.learning_rate_schedule, progress))
    data = minibatches.flat(Batch(rollout.obs, rollout.action, targets(parts, state, rollout)))

    def step(learner: tuple[PyTree, PyTree], rows: Array):
        params, opt_state = learner
        taken = minibatches.take(data, rows)
        grads, metrics = minibatches.gradient(
            lambda params, batch: loss(parts, params, state, batch), params, taken, config.chunk_size
        )
        params, opt_state, norm = descent.step(params, opt_state, grads)
        return (params, opt_state), (metrics | {"grad_norm": norm}, jnp.ones((), bool))

    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, rollout.reward.size)
    orders = orders.reshape(-1, orders.shape[-1])
    (params, opt_state), found = minibatches.descend(step, (state.params, state.opt_state), orders, METRICS)
    state = state.replace(
        params=params,
        opt_state=opt_state,
        normalizer=normalization.take_in(state.normalizer, parts.obs_space, rollout, hyper.gamma),
        num_steps=exploration.count(state.num_steps, rollout.reward.size),
    )
    return state, minibatches.means(METRICS, *found) | {"learning_rate": jnp.asarray(descent.learning_rate)}


def check(parts: Parts, num_envs: int, num_steps: int) -> None:
    """Raise a ConfigError where a rollout of this size cannot be divided into minibatches."""
    validation.divides("num_minibatches", parts.config.num_minibatches, "num_envs * num_steps", num_envs * num_steps)


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """PQN for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: as for `dqn.make`; None for the one that `config` describes.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    space = exploration.discrete(action_space, "pqn")
    validation.fits_network(config, obs_space)
    if network is None:
        described = config.model_dump(include=set(q_network.SETTINGS))
        network = q_network.q_network(obs_space=obs_space, num_actions=space.n, outputs=None, noisy=False, **described)
    parts = Parts(config, obs_space, space, validation.own_network(network))
    return Agent(
        init=partial(init, parts),
        actor=actor,
        act=partial(act, parts),
        policy=partial(policy, parts),
        update=partial(update, parts),
        check=partial(check, parts),
    )

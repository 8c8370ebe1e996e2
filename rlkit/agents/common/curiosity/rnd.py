"""Exploration bonus by random network distillation (Burda et al. 2018), for agents that learn from rollouts.

A predictor g learns the outputs of a target f, a network whose random parameters never change, at the observations that
steps lead to. A step's bonus is the error that is left there, large where few steps have led before:

    b_t = mean_k (g_k(o_{t+1}) - f_k(o_{t+1}))^2,     i_t = b_t / deviation of sum_l gamma_I^l b_{t-l}

The bonus has a value function V_I and a discount gamma_I of its own. Its returns go on where an episode ends, as dying
must not be a way to hide from it (section 2.3); o'_{t+1} below is the next row's observation, of the next episode then:

    A_I = sum_l (gamma_I lambda)^l (i_{t+l} + gamma_I V_I(o'_{t+l+1}) - V_I(o_{t+l}))
    A = A_E + exploration_bonus A_I

One update minimizes, over the epochs and minibatches of the agent,

    E[ mean_k (g_k - f_k)^2 ] + E[ (V_I - (A_I + V_I,old))^2 ] / 2.

Observations are normalized by running statistics and clipped to +-5 (section 2.4).

Departures from the paper: each network has an encoder of its own, described by the agent's Config, so that the agent's
networks stay as they are, and with relu; the statistics include the current rollout, in place of a start with random
actions; images are not normalized; the predictor learns from all rows and not from a part of them. After the last row
V_I is of the true final observation.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit import _mesh
from rlkit.agents.common import minibatches, normalization
from rlkit.agents.common.minibatches import MetricRows
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.optimizer import Optimizer
from rlkit.networks import views
from rlkit.networks.encoders import combine
from rlkit.networks.heads import critics
from rlkit.ops.chunked import chunked_map
from rlkit.ops.returns import gae
from rlkit.spaces import Space
from rlkit.types import Array, Key, Network, PyTree, StateNode, Transition

OUTPUTS = 128  # of the target
LOSSES = ("predictor_loss", "bonus_value_loss")  # metrics, which must be finite


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Any
    obs_space: Space  # without the leaf `privileged`: a bonus is for what the policy observes
    networks: dict[str, Network]  # target, predictor and value
    axis_name: str | None = None  # of the mesh axis over which environments are divided


class State(StateNode):
    """Networks and statistics of the bonus."""

    target: tuple[PyTree, PyTree]  # parameters and statistics of a network that does not learn
    params: dict[str, PyTree]  # of predictor and value
    stats: dict[str, PyTree]  # of predictor and value, which stay; () where a network has none
    opt_state: PyTree
    normalizer: Normalizer  # of observations after a step, and of the discounted bonus


class Batch(NamedTuple):
    """Rows of a rollout, leaves [B, ...]."""

    obs: PyTree
    next_obs: PyTree
    target: Array  # of the value


def make(config: Any, obs_space: Space, axis_name: str | None = None) -> Static:
    """The networks of the bonus, for an agent's Config with the fields of `EncoderConfig` and `MinibatchConfig`."""
    described = config.model_dump(include=set(combine.SETTINGS)) | {"activation": "relu"}
    sizes, space = config.hidden_sizes, views.actor_space(obs_space)
    embedding = partial(critics.critics, obs_space=space, count=1, size=OUTPUTS)
    networks = {
        "target": embedding(**described),
        "predictor": embedding(**described | {"hidden_sizes": (*sizes, *sizes[-1:])}),
        "value": critics.state_value(obs_space=space, **described),
    }
    return Static(config, space, networks, axis_name)


def init(static: Static, hyper: Any, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    config, space, networks, axis_name = static
    keys = jax.random.split(key, len(networks))
    obs = views.actor_obs(example.obs)
    made = {name: network.init(key, obs) for key, (name, network) in zip(keys, networks.items(), strict=True)}
    target = made.pop("target")
    params, stats = ({name: pair[i] for name, pair in made.items()} for i in range(2))
    normalizer = normalization.init(
        space, example._replace(obs=obs), num_envs, axis_name, obs=True, reward=True, image_axes=config.image_axes
    )
    return State(target, params, stats, Optimizer.of(config, hyper, hyper.learning_rate).init(params), normalizer)


def value(static: Static, params: PyTree, state: State, obs: PyTree) -> Array:
    """The value of the bonus from observations [...] on: [...]."""
    obs = normalize_obs(state.normalizer.obs, obs, clip=5.0)
    return static.networks["value"].apply(params["value"], state.stats["value"], obs)[0]


def error(static: Static, params: PyTree, state: State, next_obs: PyTree) -> Array:
    """The mean squared error [...] of the predictor at observations [...]."""
    obs = normalize_obs(state.normalizer.obs, next_obs, clip=5.0)
    target = static.networks["target"].apply(*state.target, obs)[0][0]
    predicted = static.networks["predictor"].apply(params["predictor"], state.stats["predictor"], obs)[0][0]
    return jnp.square(predicted - jax.lax.stop_gradient(target)).mean(-1)


def loss(
    static: Static, state: State, params: PyTree, batch: Batch, key: Key
) -> tuple[Array, tuple[tuple[()], dict[str, Array]]]:
    """The loss [] of a minibatch; no statistics, and metrics. The key is not used."""
    predictor_loss = error(static, params, state, batch.next_obs).mean()
    value_loss = 0.5 * jnp.square(value(static, params, state, batch.obs) - batch.target).mean()
    return predictor_loss + value_loss, ((), {"predictor_loss": predictor_loss, "bonus_value_loss": value_loss})


def estimate(static: Static, hyper: Any, state: State, rollout: Transition) -> tuple[State, Array, Array, Array]:
    """The state with the statistics of a rollout [T, N, ...]; of its steps the bonus, A_I and the value's target."""
    normalizer, axis_name, shape = state.normalizer, static.axis_name, rollout.reward.shape
    state = state.replace(
        normalizer=normalizer.replace(obs=normalization.update_obs(normalizer.obs, rollout.next_obs, axis_name))
    )

    def rows(batch: tuple[PyTree, PyTree]) -> tuple[Array, Array]:
        obs, next_obs = batch
        return value(static, state.params, state, obs), error(static, state.params, state, next_obs)

    flat = chunked_map(rows, minibatches.flat((rollout.obs, rollout.next_obs)), static.config.chunk_size)
    now, bonus = (x.reshape(shape) for x in flat)
    last = value(static, state.params, state, jax.tree.map(lambda x: x[-1], rollout.next_obs))
    no_end = jnp.zeros_like(rollout.terminated)
    normalizer = normalization.update_returns(state.normalizer, bonus, no_end, hyper.bonus_gamma, axis_name)
    bonus = normalization.scale_reward(normalizer, bonus)
    ahead = jnp.concatenate([now[1:], last[None]])
    settings = {"gamma": hyper.bonus_gamma, "gae_lambda": hyper.gae_lambda}
    advantage = gae(bonus, now, ahead, no_end, no_end, **settings)
    return state.replace(normalizer=normalizer), bonus, advantage, advantage + now


def update(
    static: Static, hyper: Any, learning_rate: Array, state: State, rollout: Transition, key: Key
) -> tuple[State, Transition, dict[str, Array]]:
    """Learn from one rollout [T, N, ...] of an agent with this Hyper.

    Returns the state, the rollout with the advantages A_I [T, N] under the parameters before in its extras, which are
    those of `policy_evaluation.act`, and metrics.
    """
    config, axis_name = static.config, static.axis_name
    state, bonus, advantage, target = estimate(static, hyper, state, rollout)
    data = minibatches.flat(Batch(rollout.obs, rollout.next_obs, target))
    optimizer = Optimizer.of(config, hyper, learning_rate)
    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, bonus.size, axis_name)
    orders = orders.reshape(-1, orders.shape[-1])
    chunks = minibatches.num_chunks(config, (), orders[0])
    gradient = minibatches.gradient(partial(loss, static, state), chunks, axis_name)

    def step(learner: tuple[PyTree, PyTree], rows: Array) -> tuple[tuple[PyTree, PyTree], MetricRows]:
        grads, (_, metrics) = gradient(learner[0], minibatches.take(data, rows), key)
        params, opt_state, _ = optimizer.step(*learner, grads)
        return (params, opt_state), MetricRows.of(metrics)

    learner = _mesh.vary_like((state.params, state.opt_state), orders, without=axis_name)
    (params, opt_state), metrics = jax.lax.scan(step, learner, orders)
    means = metrics.means() | {"bonus_mean": _mesh.mean(bonus.mean(), axis_name)}
    rollout = rollout._replace(extras=rollout.extras._replace(intrinsic=advantage))
    return state.replace(params=params, opt_state=opt_state), rollout, means

"""Parallelized Q-network, PQN (Gallici et al. 2025): Q(λ) over many environments, without replay and target network.

An update minimizes, over several epochs of minibatches of a rollout,

    E[ (Q(o_t, a_t) - G_t)^2 / 2 ],  G_t = r_t + γ [(1 - λ) max_a Q(o_{t+1}, a) + λ G_{t+1}]

with the λ-returns (algorithm 1) computed once, under the parameters before the update. Layer normalization stands in
for the target network. With a memory, a minibatch holds environments with all their steps. Departures from the paper:
Adam in place of RAdam, no normalization after convolutions unless `norm` is set, time limits are bootstrapped from the
true final observation, and the network sees the last action only with the wrapper `previous_action_reward`.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents.base import as_arrays
from rlkit.agents.common import exploration, minibatches, normalization, q_learning
from rlkit.agents.common.config import Count, EncoderConfig, InNetwork, MemoryConfig, MinibatchConfig
from rlkit.agents.common.hyper import (
    EpsilonHyper,
    FiniteNonNegative,
    FinitePositive,
    OptimizerHyper,
    Positive,
)
from rlkit.agents.common.minibatches import MetricRows
from rlkit.agents.common.normalization import Normalizer, normalize_obs
from rlkit.agents.common.optimizer import Optimizer
from rlkit.agents.common.policy_evaluation import episode_starts
from rlkit.agents.common.q_learning import Actor
from rlkit.networks.cores.recurrent import along
from rlkit.networks.features import action_mask
from rlkit.ops._arrays import pick
from rlkit.ops.chunked import chunked_map
from rlkit.ops.returns import lambda_returns
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, Network, PyTree, Scalar, StateNode, Transition


class Config(MinibatchConfig, MemoryConfig, EncoderConfig):
    layer_norm: bool = Field(default=True, description="after each dense layer; `norm` is that of convolutions")
    dueling: Annotated[bool, InNetwork] = False
    num_epochs: Count = 2


class Hyper(OptimizerHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    learning_rate: FiniteNonNegative = 2.5e-4
    gamma: Annotated[Scalar, Interval(ge=0.0, le=1.0), "discount per step"] = 0.99
    q_lambda: Annotated[Scalar, Interval(ge=0.0, le=1.0), "0 is one-step Q-learning"] = 0.65
    max_grad_norm: Annotated[Positive, "global norm"] = 10.0
    adam_eps: Annotated[FinitePositive, "of rmsprop too"] = 1e-5


class State(StateNode):
    """Everything that learning carries from update to update."""

    hyper: Hyper
    params: PyTree
    stats: PyTree  # of the network; () where it has none
    opt_state: PyTree
    normalizer: Normalizer
    num_steps: Array  # [] uint32, environment steps so far; it stays at 2^32 - 1


class Static(NamedTuple):
    """Arguments that `make` binds."""

    config: Config
    obs_space: Space
    action_space: Discrete
    network: Network
    axis_name: str | None = None  # of the mesh axis over which environments are divided

    @property
    def recurrent(self) -> bool:
        return bool(jax.tree.leaves(self.network.memory))


class Learner(NamedTuple):
    """State that the minibatches of an update change."""

    params: PyTree
    stats: PyTree
    opt_state: PyTree


class Batch(NamedTuple):
    """Rows of a rollout with their targets: leaves [B, ...], or [T, B, ...] for a recurrent network."""

    obs: PyTree
    action: Array
    target: Array
    start: Any = ()  # bool, whether an episode begins here, for a recurrent network


def loss(
    static: Static, params: PyTree, stats: PyTree, state: State, batch: Batch, key: Key, core: PyTree = ()
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """The loss [] of a minibatch; the network's statistics, and metrics.

    `core` [B, ...] is a recurrent network's memory before the first row.
    """
    if static.recurrent:
        obs = normalize_obs(state.normalizer.obs, batch.obs)
        q, _, stats = along(static.network, params, stats, obs, batch.start, core, train=True, key=key)
    else:
        q, stats = q_learning.apply(static, (params, stats), state.normalizer.obs, batch.obs, key, train=True)
    q = pick(q, batch.action)
    total = jnp.mean(jnp.square(q - batch.target)) / 2
    return total, (stats, {"loss": total, "q": jnp.mean(q)})


def gradient_step(
    static: Static, state: State, optimizer: Optimizer, learner: Learner, batch: Batch, key: Key, core: PyTree = ()
) -> tuple[Learner, dict[str, Array]]:
    """One step of descent on a minibatch: the learner after it, and the metrics.

    The minibatch of a network with a memory or with statistics is never cut into chunks.
    """
    gradient_of = minibatches.gradient(
        lambda params, rows, key: loss(static, params, learner.stats, state, rows, key, core),
        1 if static.recurrent else minibatches.num_chunks(static.config, learner.stats, batch),
        static.axis_name,
    )
    gradient, (stats, metrics) = gradient_of(learner.params, batch, key)
    params, opt_state, grad_norm = optimizer.step(learner.params, learner.opt_state, gradient)
    return Learner(params, stats, opt_state), metrics | {"grad_norm": grad_norm}


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    memory = (jax.tree.map(jnp.asarray, static.network.memory),) if static.recurrent else ()
    params, stats = static.network.init(key, example.obs, *memory)
    state = State(
        hyper=as_arrays(hyper, static.config, num_envs),
        params=params,
        stats=stats,
        opt_state=Optimizer.of(static.config, hyper, hyper.learning_rate).init(params),
        normalizer=normalization.init(
            static.obs_space,
            example,
            num_envs,
            obs=static.config.normalize_obs,
            image_axes=static.config.image_axes,
        ),
        num_steps=jnp.zeros((), jnp.uint32),
    )
    return _mesh.vary_like(state, without=static.axis_name)


def actor(state: State) -> Actor:
    """Parameters and statistics for acting."""
    return Actor(state.params, state.stats, state.normalizer.obs, exploration.epsilon(state.hyper, state.num_steps))


def step(
    static: Static, variables: tuple[PyTree, PyTree], obs_stats: PyTree, obs: PyTree, core: PyTree
) -> tuple[Array, PyTree]:
    """Q [..., A] of observations [...], and a recurrent network's memory after them; `core` [...] is that before."""
    if static.recurrent:
        return static.network.apply(*variables, normalize_obs(obs_stats, obs), core)[0]
    return q_learning.apply(static, variables, obs_stats, obs)[0], core


def act(static: Static, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, PyTree]:
    """One exploring step for one observation: a random action with probability epsilon.

    Its extras are the network's memory before it.
    """
    q, core = step(static, actor[:2], actor.obs_stats, obs, memory)
    return core, exploration.epsilon_greedy(key, static.action_space, q, action_mask(obs), actor.epsilon), memory


def policy(static: Static, actor: Actor, memory: PyTree, obs: PyTree, key: Key) -> tuple[PyTree, Array, tuple]:
    """One step for one observation: the action of the largest value. The key is not used."""
    q, core = step(static, actor[:2], actor.obs_stats, obs, memory)
    return core, exploration.greedy(static.action_space, q, action_mask(obs)), ()


def targets(static: Static, state: State, rollout: Transition) -> Array:
    """The λ-returns [T, N] of a rollout, its next values computed in chunks of rows.

    The next value of a recurrent network has the memory after the row, before any reset.
    """

    one_step = partial(step, static, (state.params, state.stats), state.normalizer.obs)

    def largest_value(rows: tuple[PyTree, PyTree, PyTree]) -> Array:
        obs, next_obs, core = rows
        if static.recurrent:
            core = one_step(obs, core)[1]
        q, _ = one_step(next_obs, core)
        # The value of the greedy action is finite also where no action is legal.
        return pick(q, exploration.greedy(static.action_space, q, action_mask(next_obs)))

    obs, core = (rollout.obs, rollout.extras) if static.recurrent else ((), ())
    flat = minibatches.flat((obs, rollout.next_obs, core))
    next_value = chunked_map(largest_value, flat, static.config.chunk_size).reshape(rollout.reward.shape)
    hyper = state.hyper
    return lambda_returns(
        rollout.reward, next_value, rollout.terminated, rollout.truncated, gamma=hyper.gamma, lambda_=hyper.q_lambda
    )


def update(static: Static, state: State, rollout: Transition, key: Key) -> tuple[State, dict[str, Array]]:
    """Learn from one rollout [T, N, ...]; the metrics are means over the minibatches."""
    config, hyper, axis_name = static.config, state.hyper, static.axis_name
    devices = _mesh.size(axis_name)
    num_steps, num_envs = rollout.reward.shape[0], rollout.reward.shape[1] * devices
    config.check_rollout(num_envs, num_steps, devices, sequences=static.recurrent)
    before = state.num_steps.astype(jnp.float32)
    rate = Optimizer.scheduled_rate(config, hyper, before, before + num_steps * num_envs)
    optimizer = Optimizer.of(config, hyper, rate)
    data = Batch(rollout.obs, rollout.action, targets(static, state, rollout))
    data = data._replace(start=episode_starts(rollout)) if static.recurrent else minibatches.flat(data)
    first_core = jax.tree.map(lambda x: x[0], rollout.extras) if static.recurrent else ()

    def learn(learner: Learner, inputs: tuple[Array, Key]) -> tuple[Learner, MetricRows]:
        rows, key = inputs
        batch = jax.tree.map(lambda x: x[:, rows], data) if static.recurrent else minibatches.take(data, rows)
        core = minibatches.take(first_core, rows)
        learner, metrics = gradient_step(static, state, optimizer, learner, batch, key, core)
        return learner, MetricRows.of(metrics)

    rows = rollout.reward.shape[1] if static.recurrent else rollout.reward.size
    orders = minibatches.shuffled(key, config.num_epochs, config.num_minibatches, rows, axis_name)
    orders = orders.reshape(-1, orders.shape[-1])  # all epochs in one loop instead of one within another
    keys = minibatches.noise_keys(key, len(orders), axis_name)
    learner = _mesh.vary_like(Learner(state.params, state.stats, state.opt_state), orders, without=axis_name)
    learner, metrics = jax.lax.scan(learn, learner, (orders, keys))
    state = state.replace(
        **learner._asdict(),
        normalizer=normalization.update(state.normalizer, rollout, hyper.gamma, axis_name),
        num_steps=exploration.add_steps(state.num_steps, num_steps * num_envs),
    )
    return state, metrics.means() | Optimizer.rate_metric(config, rate)


def supports(action_space: Space) -> bool:
    """True for the action spaces that the agent can act in."""
    return isinstance(action_space, Discrete)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """PQN for these spaces.

    Arguments and errors are those of `dqn.make`; a network may have a memory, and then returns Q [..., A] and the next
    memory.
    """
    network = q_learning.network(
        Config, config, obs_space, action_space, networks, axis_name=axis_name, memory="optional"
    )
    assert isinstance(action_space, Discrete)
    config = minibatches.with_chunk_size(config, network, obs_space)
    static = Static(config, obs_space, action_space, network, axis_name)
    return Agent(
        init=partial(init, static),
        actor=actor,
        act=partial(act, static),
        policy=partial(policy, static),
        update=partial(update, static),
        memory=network.memory,
        check=partial(config.check_rollout, sequences=static.recurrent),
        static=static,
        axis_name=axis_name,
        finite=("loss", "grad_norm"),
        trained=("params", "stats", "normalizer.obs"),
    )

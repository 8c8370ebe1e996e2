"""Recurrent replay distributed deep Q-learning, R2D2 (Kapturowski et al. 2019), in one program.

It learns from sequences of consecutive steps, drawn by priority, that may run across episode ends: the network's
memory starts as it was stored when the sequence was acted, is warmed up over `burn_in` rows without a gradient, and is
put back where an episode starts. On the `unroll_len` rows after those a gradient step lowers

    E[ w (Q(o_t, a_t, m_t) - h(Σ_{i<n} γ^i r_{t+i} + γ^n h^-1(Q_target(o_{t+n}, a*, m_{t+n}))))^2 / 2 ]

with the rescaling h of Pohlen et al. (2018), a* chosen by the online network, and n-step returns that stop at every
episode end. The priority of a sequence is 0.9 max |TD error| + 0.1 mean |TD error|. Environment i of N explores with
probability ε^(1 + 7 i / (N - 1)) (Horgan et al. 2018). Where it departs from the paper: acting and learning take turns,
the returns of a sequence's last n - 1 rows end with it and are shorter than n, and returns are bootstrapped over time
limits from the true final observation, rated with the memory after the last step.
"""

from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field, PositiveInt

from rlkit import replay
from rlkit.agents.common import config, exploration, off_policy, validation
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import State
from rlkit.networks import q_network
from rlkit.networks.features import action_mask
from rlkit.networks.recurrent import along, where_rows
from rlkit.ops import losses
from rlkit.ops._arrays import pick
from rlkit.ops.returns import n_step_returns
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Buffer, Key, Network, PyTree, Sample, Scalar, Transition


class Config(config.Replay, config.Torso):
    """What shapes the program. Static and hashable."""

    batch_size: PositiveInt = Field(32, description="sequences of a gradient step")
    replay: Literal["uniform", "prioritized"] = "prioritized"
    alpha: Annotated[float, Interval(ge=0.0, le=10.0)] = Field(0.9, description="how much priorities count")
    n_step: PositiveInt = Field(5, description="rewards in a target before it bootstraps")
    recurrent: Literal["gru", "lstm"] = "lstm"
    memory_size: PositiveInt = Field(64, description="units of the recurrent core")
    burn_in: int = Field(8, ge=0, description="rows of a sequence that only warm the memory up")
    unroll_len: PositiveInt = Field(16, description="rows of a sequence that are learned from")
    double: bool = True
    dueling: bool = True
    rescale: bool = Field(True, description="learn the values in the compressed scale h")

    @property
    def slice_len(self) -> int:
        """Rows of a sequence."""
        return self.burn_in + self.unroll_len


class Hyper(config.LearningHyper, config.EpsilonHyper):
    """What a vmap may sweep: float32 scalars. Infinity switches a term off."""

    beta: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, at the start"] = 0.6
    beta_end: Annotated[Scalar, Interval(ge=0.0), "of prioritized replay, after schedule_steps"] = 0.6
    epsilon_end: Annotated[Scalar, Interval(ge=0.0, le=1.0), "of the first environment, at last"] = 0.4
    epsilon_ladder: Annotated[Scalar, Interval(ge=0.0), "how much less the last environment explores"] = 7.0
    priority_max: Annotated[Scalar, Interval(ge=0.0, le=1.0), "share of the largest error in a priority"] = 0.9


class Memory(NamedTuple):
    """What the policy of one environment remembers within an episode."""

    core: PyTree  # of the network
    rung: Array | np.ndarray  # [] float32, the place of the environment on the ladder, in [0, 1]


class Actor(NamedTuple):
    """What acting needs."""

    params: PyTree
    obs_stats: PyTree
    epsilon: Array  # [], of the first environment
    ladder: Scalar


class Parts(NamedTuple):
    """The static surroundings of the functions below."""

    config: Config
    obs_space: Space
    action_space: Discrete
    network: Network
    buffer: Buffer


def loss(parts: Parts, params: PyTree, state: State, sample: Sample, key: Key) -> tuple[Array, tuple[Array, dict]]:
    """The loss [] of sequences, their priorities [B], and metrics. No key is used."""
    config, hyper = parts.config, state.hyper
    item, mask = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (sample.item, sample.mask))  # [L, B, ...]
    start = _starts(item)
    warm = partial(_rows, slice(None, config.burn_in))
    learned = partial(_rows, slice(config.burn_in, None))
    core = jax.tree.map(lambda x: x[0], item.extras)

    def rates(params: PyTree) -> tuple[Array, PyTree]:
        """Q [U, B, A] of the rows to learn from, and the memory before each."""
        begin = core
        if config.burn_in:
            begin = jax.lax.stop_gradient(_ahead(parts, params, state, warm(item), warm(start), core))
        first = start[config.burn_in] if config.burn_in else None
        return _along(parts, params, state, learned(item.obs), learned(start), begin, first)

    item_learned, weight = learned(item), jnp.where(learned(mask), 1.0, 0.0)
    q, before = rates(params)
    target_before = rates(state.target_params)[1]
    next_q = _next(parts, state.target_params, state, item_learned, target_before)
    chooser = _next(parts, params, state, item_learned, jax.lax.stop_gradient(before)) if config.double else next_q
    next_action = exploration.greedy(parts.action_space, chooser, action_mask(item_learned.next_obs))
    squeeze, expand = (losses.signed_hyperbolic, losses.signed_parabolic) if config.rescale else (_same, _same)
    returns = n_step_returns(
        item_learned.reward,
        expand(pick(next_q, next_action)),
        item_learned.terminated,
        item_learned.truncated,
        gamma=hyper.gamma,
        n=config.n_step,
    )
    taken = pick(q, item_learned.action)
    error = weight * (jax.lax.stop_gradient(squeeze(returns)) - taken)
    rows = jnp.maximum(weight.sum(0), 1.0)
    per_sequence = jnp.sum(jnp.square(error), axis=0) / rows / 2
    size = jax.lax.stop_gradient(jnp.abs(error))
    priority = hyper.priority_max * size.max(0) + (1.0 - hyper.priority_max) * size.sum(0) / rows
    total = jnp.mean(sample.weight * per_sequence)
    mean_q = jnp.sum(weight * taken) / jnp.maximum(weight.sum(), 1.0)
    return total, (priority, {"loss": total, "q": mean_q, "priority": priority.mean()})


def _starts(item: Transition) -> Array:
    """[L, B] bool, the rows after the first at which an episode begins."""
    done = item.terminated | item.truncated
    return jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])


def _rows(rows: slice, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[rows], tree)


def _same(x: Array) -> Array:
    return x


def _along(
    parts: Parts, params: PyTree, state: State, obs: PyTree, start: Array, core: PyTree, first: Array | None = None
) -> tuple[Array, PyTree]:
    """Q [T, B, A] along rows from the memory `core` [B, ...], and the memory before each row.

    `first` [B] says whether an episode begins at the first row, where `core` is not yet what it then is.
    """
    if first is not None:
        core = where_rows(first, parts.network.memory, core)
    return along(parts.network, params, normalize_obs(parts.obs_space, state.normalizer.obs, obs), start, core)


def _ahead(parts: Parts, params: PyTree, state: State, item: Transition, start: Array, core: PyTree) -> PyTree:
    """The memory [B, ...] after rows [T, B, ...]."""
    before = _along(parts, params, state, item.obs, start, core)[1]
    last = jax.tree.map(lambda x: x[-1], (item.obs, before))
    return _step(parts, params, state, *last)[1]


def _step(parts: Parts, params: PyTree, state: State, obs: PyTree, core: PyTree) -> tuple[Array, PyTree]:
    """Q [..., A] of observations [...] with a memory before them [...], and the memory after."""
    return parts.network.apply(params, normalize_obs(parts.obs_space, state.normalizer.obs, obs), core)


def _next(parts: Parts, params: PyTree, state: State, item: Transition, before: PyTree) -> Array:
    """Q [T, B, A] of next_obs, with the memory after each row, before any reset."""
    after = _step(parts, params, state, item.obs, before)[1]
    return jax.lax.stop_gradient(_step(parts, params, state, item.next_obs, after)[0])


def init(parts: Parts, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """A state that has learned nothing; `example` is one step without batch axes."""
    core = jax.tree.map(jnp.asarray, parts.network.memory)
    params = parts.network.init(key, example.obs, core)
    return off_policy.init(parts, hyper, example._replace(extras=core), num_envs, params, params)


def actor(parts: Parts, state: State) -> Actor:
    """What acting needs of the state."""
    epsilon = exploration.epsilon(state.hyper, state.replay.num_steps)
    return Actor(state.params, state.normalizer.obs, epsilon, state.hyper.epsilon_ladder)


def act(parts: Parts, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, PyTree]:
    """One exploring step for one observation; what learning wants back is the memory before it."""
    seen = normalize_obs(parts.obs_space, actor.obs_stats, obs)
    q, core = parts.network.apply(actor.params, seen, memory.core)
    epsilon = actor.epsilon ** (1.0 + actor.ladder * memory.rung)
    action = exploration.epsilon_greedy(key, parts.action_space, q, action_mask(obs), epsilon)
    return memory._replace(core=core), action, memory.core


def policy(parts: Parts, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, tuple]:
    """One step for one observation: the action of the largest value. The key is not used."""
    seen = normalize_obs(parts.obs_space, actor.obs_stats, obs)
    q, core = parts.network.apply(actor.params, seen, memory.core)
    action = exploration.greedy(parts.action_space, q, action_mask(obs))
    return memory._replace(core=core), action, ()


def memories(network: Network, num_envs: int) -> Memory:
    """What each of N environments' policies remembers at the start of an episode, leaves [N, ...]."""
    core = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (num_envs, *np.shape(x))), network.memory)
    return Memory(core, jnp.arange(num_envs, dtype=jnp.float32) / max(num_envs - 1, 1))


def make(config: Config, obs_space: Space, action_space: Space, network: Any = None) -> Agent:
    """R2D2 for these spaces.

    Args:
      config: the static settings.
      obs_space, action_space: an environment's spaces.
      network: a `Network` with a memory whose apply returns Q [..., A] and the next memory; None for the one that
        `config` describes.

    Raises:
      ConfigError: the action space is not Discrete, or a setting does not fit.
    """
    space = exploration.discrete(action_space, "r2d2")
    validation.fits_network(config, obs_space)
    if network is None:
        described = config.model_dump(include={*q_network.SETTINGS, "recurrent", "memory_size"})
        network = q_network.q_network(obs_space=obs_space, num_actions=space.n, outputs=None, noisy=False, **described)
    buffer = replay.slices(
        config.capacity,
        config.batch_size,
        config.slice_len,
        cross_episodes=True,
        prioritized=config.replay == "prioritized",
        alpha=config.alpha,
        store_obs_once=config.store_obs_once,
    )
    parts = Parts(config, obs_space, space, validation.own_network(network), buffer)
    return off_policy.agent(
        parts,
        init,
        actor,
        act,
        policy,
        loss=loss,
        batch_of=lambda sample, gamma: sample,
        rows=config.slice_len,
        memory=Memory(parts.network.memory, np.array(1.0, np.float32)),
        memories=partial(memories, parts.network),
    )

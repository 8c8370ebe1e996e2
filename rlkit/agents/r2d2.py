"""Recurrent replay distributed deep Q-learning, R2D2 (Kapturowski et al. 2019), in one program.

It learns from sequences of consecutive steps, drawn by priority, that may run across episode ends: the network's memory
starts as it was stored when the sequence was acted, is warmed up over `burn_in` rows without a gradient, and is reset
where an episode starts. On the `unroll_len` rows after those a gradient step minimizes

    E[ w (Q(o_t, a_t, m_t) - h(Σ_{i<n} γ^i r_{t+i} + γ^n h^-1(Q_target(o_{t+n}, a*, m_{t+n}))))^2 / 2 ]

with the rescaling h of Pohlen et al. (2018), a* chosen by the online network, and n-step returns that stop at every
episode end. The priority of a sequence is 0.9 max |TD error| + 0.1 mean |TD error|. Environment i of N explores with
probability ε^(1 + 7 i / (N - 1)) (Horgan et al. 2018), one alone with an ε that falls to 0.05. Departures from the
paper: the network sees the last action and reward only with the wrapper `previous_action_reward`; sequences start at
every row, may run across episode ends, and new ones have the greatest priority in the buffer; heads are linear; acting
and learning alternate; the returns of a sequence's last n - 1 rows end with it, and returns are bootstrapped over time
limits from the true final observation, evaluated with the memory after the last step.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from pydantic import Field

from rlkit import _mesh
from rlkit.agents import dqn
from rlkit.agents.base import Task, as_arrays
from rlkit.agents.base.keys import Unused
from rlkit.agents.common import exploration, off_policy, q_learning
from rlkit.agents.common.config import CoreName, Count, InNetwork, MemoryLayers, QLearningConfig, Width
from rlkit.agents.common.hyper import EpsilonHyper, FiniteNonNegative, OffPolicyHyper, Share
from rlkit.agents.common.normalization import normalize_obs
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.optimizer import Optimizer, mean_gradient
from rlkit.agents.common.own_parts import OrOwn
from rlkit.agents.common.policy_evaluation import episode_starts
from rlkit.agents.common.q_learning import Static
from rlkit.networks.cores.recurrent import along, where_rows
from rlkit.networks.features import action_mask
from rlkit.ops import losses
from rlkit.ops._arrays import pick
from rlkit.ops.returns import n_step_returns
from rlkit.spaces import Discrete, Space
from rlkit.types import Agent, Array, Key, Network, PyTree, Sample, Scalar, Transition

Variables = tuple[PyTree, PyTree]  # parameters and statistics of the network


class Config(QLearningConfig):
    batch_size: Count = Field(default=32, description="sequences of a gradient step")
    replay: Annotated[Literal["uniform", "prioritized"], OrOwn] = Field(
        default="prioritized", description="or module:function of this Config that makes a buffer of slices of yours"
    )
    alpha: Annotated[float, Interval(ge=0.0, le=10.0)] = Field(default=0.9, description="exponent of the priorities")
    n_step: Count = Field(default=5, description="rewards in a target before it bootstraps")
    recurrent: Annotated[CoreName, InNetwork] = Field(
        default="lstm", description="the memory; mingru, lru and s5 learn from all steps of a sequence at once"
    )
    memory_size: Annotated[Width, InNetwork] = Field(default=64, description="units of the recurrent core")
    memory_layers: Annotated[MemoryLayers, InNetwork] = Field(default=1, description="of the recurrent core")
    burn_in: int = Field(default=8, ge=0, lt=2**31, description="rows of a sequence that only warm the memory up")
    unroll_len: Count = Field(default=16, description="rows of a sequence that are learned from")
    double: bool = True
    dueling: Annotated[bool, InNetwork] = True
    rescale: bool = Field(default=True, description="learn the values in the compressed scale h")

    @classmethod
    def run_defaults(cls, task: Task) -> dict[str, Any]:
        values = super().run_defaults(task)
        if task.stored:
            return values
        values |= {"replay_ratio": 1 / 16, "batch_size": 32}  # of sequences
        return values if task.in_jax else values | {"num_steps": 16}

    @property
    def item_length(self) -> int:
        """Rows of a sequence."""
        return self.burn_in + self.unroll_len


class Hyper(OffPolicyHyper, EpsilonHyper):
    """Traced float32 scalars, which a vmap may sweep. Infinity switches a term off."""

    beta: Annotated[FiniteNonNegative, "of prioritized replay, at the start"] = 0.6
    beta_end: Annotated[FiniteNonNegative, "of prioritized replay, after schedule_steps"] = 0.6
    epsilon_end: Annotated[
        Scalar | None, Interval(ge=0.0, le=1.0), "of the first environment, at last; null: 0.4, or 0.05 if alone"
    ] = None
    epsilon_ladder: Annotated[
        FiniteNonNegative, "added to the last environment's exponent of epsilon", Unused(num_envs=1)
    ] = 7.0
    priority_max: Annotated[Share, "share of the largest error in a priority", Unused(replay="uniform")] = 0.9

    @classmethod
    def defaults(cls, config: Any, num_envs: int) -> dict[str, float]:
        return super().defaults(config, num_envs) | {"epsilon_end": 0.05 if num_envs == 1 else 0.4}


State = off_policy.State


class Memory(NamedTuple):
    """Memory of the policy of one environment within an episode."""

    core: PyTree  # of the network
    rung: Array | np.ndarray  # [] float32, the place of the environment on the ladder of epsilons, in [0, 1]


class Actor(NamedTuple):
    """Parameters and statistics for acting."""

    params: PyTree
    stats: PyTree
    obs_stats: PyTree
    epsilon: Array  # [], of the first environment
    ladder: Scalar


def loss(static: Static, params: PyTree, state: State, sample: Sample, key: Key) -> tuple[Array, tuple]:
    """The loss [] of sequences; the network's statistics, the sequences' priorities [B], and metrics."""
    config, hyper = static.config, state.hyper
    item, mask = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (sample.item, sample.mask))  # [L, B, ...]
    start = episode_starts(item)
    warm_up = partial(rows_of, slice(None, config.burn_in))
    learned = partial(rows_of, slice(config.burn_in, None))
    core = jax.tree.map(lambda x: x[0], item.extras)

    def q_along(variables: Variables, **training: Any) -> tuple[Array, PyTree, PyTree]:
        """Q [U, B, A] of the rows to learn from, the memory before each, and the statistics."""
        begin, first = core, None
        if config.burn_in:
            warmed = memory_after(static, variables, state, warm_up(item), warm_up(start), core)
            begin, first = jax.lax.stop_gradient(warmed), start[config.burn_in]
        return unroll(static, variables, state, learned(item.obs), learned(start), begin, first, **training)

    steps, weight = learned(item), learned(mask).astype(jnp.float32)
    online, target = (params, state.stats), (state.target_params, state.target_stats)
    q, before, stats = q_along(online, train=True, key=key)
    networks = [(target, q_along(target)[1])] + ([(online, before)] if config.double else [])
    next_q, *others = next_values(static, networks, state, steps)
    selector = others[0] if config.double else next_q
    next_action = exploration.greedy(static.action_space, selector, action_mask(steps.next_obs))
    rescale, undo = (losses.signed_hyperbolic, losses.signed_parabolic) if config.rescale else (lambda x: x,) * 2
    returns = n_step_returns(
        steps.reward,
        undo(pick(next_q, next_action)),
        steps.terminated,
        steps.truncated,
        gamma=hyper.gamma,
        n=config.n_step,
    )
    q = pick(q, steps.action)
    td_error = weight * (jax.lax.stop_gradient(rescale(returns)) - q)
    num_rows = jnp.maximum(weight.sum(0), 1.0)
    per_sequence = jnp.sum(jnp.square(td_error), axis=0) / num_rows / 2
    size = jax.lax.stop_gradient(jnp.abs(td_error))
    priority = hyper.priority_max * size.max(0) + (1.0 - hyper.priority_max) * size.sum(0) / num_rows
    total = jnp.mean(sample.weight * per_sequence)
    sum_q, sum_weight = _mesh.total((jnp.sum(weight * q), weight.sum()), static.axis_name)
    mean_q = sum_q / jnp.maximum(sum_weight, 1.0)
    return total, (stats, priority, {"loss": total, "q": mean_q, "priority": priority.mean()})


def gradient_step(
    static: Static, state: State, sample: Sample, schedules: Schedules, key: Key
) -> tuple[State, Array, dict[str, Array]]:
    """One step of descent on a sample of sequences. Returns the state, the priorities [B] and the metrics."""
    gradient, (stats, priority, metrics) = mean_gradient(loss, static, state.params, state, sample, key)
    optimizer = Optimizer.of(static.config, state.hyper, schedules.learning_rate)
    params, opt_state, grad_norm = optimizer.step(state.params, state.opt_state, gradient)
    state = off_policy.update_target(state, params, stats, when=schedules.update_target)
    state = state.replace(params=params, stats=stats, opt_state=opt_state)
    return state, priority, metrics | {"grad_norm": grad_norm}


def rows_of(rows: slice, tree: PyTree) -> PyTree:
    """The rows of leaves [L, ...]."""
    return jax.tree.map(lambda x: x[rows], tree)


def unroll(
    static: Static,
    variables: Variables,
    state: State,
    obs: PyTree,
    start: Array,
    core: PyTree,
    first: Array | None = None,
    **training: Any,
) -> tuple[Array, PyTree, PyTree]:
    """Q [T, B, A] along rows from the memory `core` [B, ...], the memory before each row, and the statistics.

    `first` [B] bool marks where an episode begins at the first row, so that `core` is to be reset; None for nowhere.
    `training` are `train` and `key` of `Network.apply`.
    """
    if first is not None:
        core = where_rows(first, static.network.memory, core)
    obs = normalize_obs(state.normalizer.obs, obs)
    return along(static.network, *variables, obs, start, core, **training)


def memory_after(
    static: Static, variables: Variables, state: State, item: Transition, start: Array, core: PyTree
) -> PyTree:
    """The memory [B, ...] after rows [T, B, ...] from the memory `core` before them."""
    before = unroll(static, variables, state, item.obs, start, core)[1]
    last_obs, last = jax.tree.map(lambda x: x[-1], (item.obs, before))
    return step(static, variables, state.normalizer.obs, last_obs, last)[1]


def step(static: Static, variables: Variables, obs_stats: PyTree, obs: PyTree, core: PyTree) -> tuple[Array, PyTree]:
    """Q [..., A] of observations [...] with the memory before them [...], and the memory after."""
    return static.network.apply(*variables, normalize_obs(obs_stats, obs), core)[0]


def next_values(
    static: Static, networks: Sequence[tuple[Variables, PyTree]], state: State, item: Transition
) -> tuple[Array, ...]:
    """Q [T, B, A] of next_obs by each network, with the memory after each row, before any reset; without a gradient.

    Where an episode goes on, they are the values of the next row. Where it is cut off, and at the last row, next_obs is
    evaluated separately: one row of each sequence in each turn of a loop. After a terminated row they have no meaning.

    `networks` holds, for each network, its variables and its memory before each row [T, B, ...] of `item`.
    """
    networks, columns = jax.lax.stop_gradient(networks), jnp.arange(item.reward.shape[1])

    def values(obs: PyTree, memories: Sequence[PyTree]) -> tuple[tuple[Array, ...], tuple[PyTree, ...]]:
        pairs = zip(networks, memories, strict=True)
        q, after = zip(*(step(static, n[0], state.normalizer.obs, obs, memory) for n, memory in pairs), strict=True)
        return q, after

    def evaluate(carry: tuple[tuple[Array, ...], Array]) -> tuple[tuple[Array, ...], Array]:
        next_q, missing = carry
        row, first = jnp.argmax(missing, axis=0), missing & (jnp.cumsum(missing, axis=0) == 1)
        own = values(*jax.tree.map(lambda x: x[row, columns], (item.next_obs, after)))[0]
        return jax.tree.map(lambda new, q: jnp.where(first[..., None], new, q), own, next_q), missing & ~first

    q, after = values(item.obs, [before for _, before in networks])
    next_q = jax.tree.map(lambda q: jnp.concatenate([q[1:], q[-1:]]), q)
    missing = item.truncated.at[-1].set(True) & ~item.terminated
    return jax.lax.while_loop(lambda carry: carry[1].any(), evaluate, (next_q, missing))[0]


def init(static: Static, hyper: Hyper, key: Key, example: Transition, num_envs: int) -> State:
    """The state before learning; `example` is one step without batch axes."""
    core = jax.tree.map(jnp.asarray, static.network.memory)
    variables, example = static.network.init(key, example.obs, core), example._replace(extras=core)
    return off_policy.init(static, as_arrays(hyper, static.config, num_envs), example, num_envs, variables)


def actor(static: Static, state: State) -> Actor:
    """Parameters and statistics for acting."""
    epsilon = exploration.epsilon(state.hyper, state.replay.num_steps)
    return Actor(state.params, state.stats, state.normalizer.obs, epsilon, state.hyper.epsilon_ladder)


def act(static: Static, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, PyTree]:
    """One exploring step for one observation; its extras are the network's memory before it."""
    q, core = step(static, actor[:2], actor.obs_stats, obs, memory.core)
    epsilon = actor.epsilon ** (1.0 + actor.ladder * memory.rung)
    action = exploration.epsilon_greedy(key, static.action_space, q, action_mask(obs), epsilon)
    return memory._replace(core=core), action, memory.core


def policy(static: Static, actor: Actor, memory: Memory, obs: PyTree, key: Key) -> tuple[Memory, Array, tuple]:
    """One step for one observation: the action of the largest value. The key is not used."""
    q, core = step(static, actor[:2], actor.obs_stats, obs, memory.core)
    return memory._replace(core=core), exploration.greedy(static.action_space, q, action_mask(obs)), ()


def memories(network: Network, num_envs: int) -> Memory:
    """The memories of N environments' policies at the start of an episode, leaves [N, ...]."""
    core = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (num_envs, *np.shape(x))), network.memory)
    return Memory(core, jnp.arange(num_envs, dtype=jnp.float32) / max(num_envs - 1, 1))


supports = dqn.supports
update = partial(off_policy.update, gradient_step)


def make(
    config: Config, obs_space: Space, action_space: Space, networks: Any = None, *, axis_name: str | None = None
) -> Agent:
    """R2D2 for these spaces.

    Arguments and errors are those of `dqn.make`, but a network has a memory: it returns Q [..., A] and the
    next memory.
    """
    network = q_learning.network(
        Config, config, obs_space, action_space, networks, axis_name=axis_name, memory="needed"
    )
    assert isinstance(action_space, Discrete)
    buffer = off_policy.sequence_buffer(config, config.batch_size, axis_name)
    static = Static(config, obs_space, action_space, network, buffer, axis_name)
    return off_policy.agent(
        static,
        init=init,
        actor=actor,
        act=act,
        policy=policy,
        gradient_step=gradient_step,
        learn=None,  # datasets hold no memory before each step
        memory=Memory(static.network.memory, np.array(1.0, np.float32)),
        memories=partial(memories, static.network),
    )

"""A training run as a pair of pure functions."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rlkit import _cpu, _mesh
from rlkit._mesh import vary_like
from rlkit.envs import reset_pool as starts
from rlkit.ops._arrays import as_int, check_key
from rlkit.spaces import zeros
from rlkit.training import worlds
from rlkit.training.rollout import EnvsState, reset, rollout
from rlkit.types import Agent, Array, ConfigError, Env, Key, PyTree, StateNode, Transition, num_players

# The metrics of a step beside the agent's: of each step and environment [T, N], and over all of them [].
EPISODES = ("returns", "lengths", "successes")
SUMMARIES = ("num_episodes", "episode_return", "episode_length", "reward_mean")


class TrainState(StateNode):
    """Complete state of a run: saved and restored, the run continues with the same numbers."""

    by_environment: ClassVar = ("envs",)

    agent: PyTree
    envs: EnvsState | Any  # of another type for environments outside of JAX
    key: Key
    step: Array  # [] int32, calls of Training.step so far
    starts: PyTree = ()  # obs, state, leaves [K, ...], the pool in which episodes begin; () for resets


class Training(NamedTuple):
    """`init(hyper, key) -> TrainState`, and `step(state) -> (state, metrics)`: one rollout and one update."""

    init: Callable[[PyTree, Key], TrainState]
    step: Callable[[TrainState], tuple[TrainState, dict[str, Array]]]


def make(
    agent: Agent,
    env: Env,
    params: Any,
    *,
    num_envs: int,
    num_steps: int,
    total_steps: int | None = None,
    reset_pool: int | None = None,
) -> Training:
    """Combine an agent and an environment into a training run.

    Both functions are pure: `jax.jit` them, `jax.lax.scan` over `step`, `jax.vmap` `init` over keys or hyper-parameters
    and `step` over the states.

    Args:
      agent, env, params: as made by an agent's `make` and by `envs.make`.
      num_envs: N, copies of the environment; of one with P players, all players of N / P worlds.
      num_steps: T, steps of each copy in one rollout.
      total_steps: environment steps of the run, with which schedules end where `schedule_steps` of Hyper is None:
        without either, β of prioritized replay stays where it starts.
      reset_pool: K, starts that are made once, of which every episode draws one by its own key, in place of a reset in
        every step. Each update replaces the oldest K / 16 by new ones, or fewer: at most one for 16 steps of it. None
        for a reset at the start of each episode.

    Returns:
      `Training`. The metrics of `step` are the agent's, and
        reward_mean: [] float32, the mean reward of a step of the rollout.
      and those of the episodes that ended in it:
        episode_return, episode_length: [] float32, means, of players where there are several; NaN where none ended.
        num_episodes: [] int32; an episode of several players is one.
        returns, lengths: [T, N] of each episode at the step where it ended; elsewhere NaN and 0.
        successes: [T, N] float32, where infos have `is_success` or `success`: 1 or 0 at that step; else NaN.
      Of an agent with an `axis_name`, both are functions for the inside of `jax.shard_map`, see `data_parallel`.

    Raises:
      ConfigError: the agent was made for other spaces or cannot divide a rollout of this size, `env` is no environment
        in JAX or `params` are not its own, N is not a multiple of P, or the environment has no step without a reset and
        there is a `reset_pool`. From `init`: observations have another shape than their space; and where the values of
        `hyper` are not traced, one that does not go with the agent's Config, such as a schedule without an end; and
        with an `axis_name` a number that cannot be divided over the devices.
    """
    num_envs, num_steps = as_int("num_envs", num_envs), as_int("num_steps", num_steps)
    worlds.check_agent(agent, *worlds.check_env(env, params))
    worlds.check_streams("num_envs", num_envs, env)
    agent.check(num_envs, num_steps)
    axis_name = agent.axis_name
    if reset_pool is not None:
        reset_pool = starts.check_size(reset_pool)
        starts.from_pool(env)  # raises where it cannot be

    def init(hyper: PyTree, key: Key) -> TrainState:
        check_key(key)
        if axis_name is not None:
            worlds.check_streams("num_envs", num_envs, env, _mesh.size(axis_name))
            agent.check(num_envs, num_steps, _mesh.size(axis_name))
        return _init(agent, env, params, num_envs, total_steps, hyper, key, reset_pool)

    def step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        next_key, update_key, rollout_keys = step_keys(state.key, num_steps, num_envs)
        envs, transitions, episodes = rollout(
            agent,
            *with_starts(env, params, state.starts),
            agent.actor(state.agent),
            state.envs,
            rollout_keys,
            num_steps,
            axis_name=axis_name,
        )
        if reset_pool is not None:
            next_key, renew_key = jax.random.split(next_key)
            world_steps = num_steps * num_envs // num_players(env)
            state = state.replace(starts=starts.renew(env, params, state.starts, renew_key, state.step, world_steps))
        agent_state, metrics = agent.update(state.agent, transitions, update_key)
        ended = episodes.lengths > 0
        num_returns, sum_returns, sum_lengths, reward_mean = (
            _mesh.total(ended.sum(dtype=jnp.int32), axis_name),
            _mesh.total(jnp.sum(episodes.returns, where=ended), axis_name),
            _mesh.total(episodes.lengths.sum(dtype=jnp.int32), axis_name),
            _mesh.mean(transitions.reward.mean(), axis_name),
        )
        metrics |= {
            "reward_mean": reward_mean,
            "episode_return": sum_returns / num_returns.astype(jnp.float32),
            "episode_length": sum_lengths.astype(jnp.float32) / num_returns.astype(jnp.float32),
            "num_episodes": num_returns // num_players(env),
            "returns": episodes.returns,
            "lengths": episodes.lengths,
            **({} if episodes.successes is None else {"successes": episodes.successes}),
        }
        return _next(agent, state, agent_state, envs, next_key), metrics

    return _training(init, step)


def with_starts(env: Env, params: Any, pool: PyTree) -> tuple[Env, Any]:
    """Return environment and parameters of the rollouts that follow a state with the `starts` of `pool`."""
    return (starts.from_pool(env), starts.PoolParams(params, pool)) if pool else (env, params)


def step_keys(key: Key, num_steps: int, num_envs: int) -> tuple[Key, Key, Key]:
    """Split the key of a state into that of the next state, that of the update, and those of a rollout [T, 2, N].

    One split instead of two, one after the other, makes the program smaller.
    """
    keys = jax.random.split(key, 2 + num_steps * 2 * num_envs)
    return keys[0], keys[1], keys[2:].reshape(num_steps, 2, num_envs)


def offline(
    agent: Agent, env: Env, params: Any, *, num_envs: int, num_steps: int, total_steps: int | None = None
) -> Training:
    """Return a training run on the contents of the agent's replay buffer, without new transitions.

        state = pair.init(hyper, key)
        state = state.replace(agent=agent.add(state.agent, transitions))  # leaves [T, num_envs, ...], extras ()

    With `data_parallel`, `data_parallel_add` takes the place of `agent.add`.

    Args:
      agent: an agent that replays single steps.
      env, params: the environment of the policy; no step of it is taken.
      num_envs: N, streams of transitions in the buffer.
      num_steps: environment steps for which one call of `step` counts in `replay_ratio`, over all streams.
      total_steps: as for `make`.

    Returns:
      `Training`, with the metrics of `make` but for reward_mean; no episode ends. Those of the agent are NaN where the
      buffer holds nothing that can be drawn.

    Raises:
      ConfigError: the agent does not replay single steps; from `step`, outside of `jax.jit`: the buffer is empty.
    """
    num_envs, num_steps, learn = as_int("num_envs", num_envs), as_int("num_steps", num_steps), agent.learn
    if learn is None:
        raise ConfigError("this agent learns from what it collects itself, not from a dataset; use iql or td3_bc")

    def step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        update_key, next_key = jax.random.split(state.key)
        own_envs = _mesh.share("num_envs", num_envs, _mesh.size(agent.axis_name))
        agent_state, metrics = learn(state.agent, update_key, num_steps)
        metrics = _require_items(metrics)
        metrics |= {
            "episode_return": jnp.float32(jnp.nan),
            "episode_length": jnp.float32(jnp.nan),
            "num_episodes": jnp.int32(0),
            "returns": jnp.full((1, own_envs), jnp.nan, jnp.float32),
            "lengths": jnp.zeros((1, own_envs), jnp.int32),
        }
        return _next(agent, state, agent_state, state.envs, next_key), metrics

    return _training(partial(_init, agent, env, params, num_envs, total_steps), step)


def _require_items(metrics: dict[str, Array]) -> dict[str, Array]:
    """The metrics of learning from a replay buffer, NaN where it is empty. Raises ConfigError if that is known."""
    size = metrics.get("buffer_size")
    if size is None:
        return metrics
    if not isinstance(size, Tracer) and not np.asarray(size).all():
        raise ConfigError("the replay buffer must hold transitions, and it is empty; fill it by agent.add")
    floats = {name: x for name, x in metrics.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return metrics | {name: jnp.where(size > 0, x, jnp.nan) for name, x in floats.items()}


def _training(init: Callable, step: Callable) -> Training:
    """Return the two functions as a `Training` that draws random bits in a form that is fast on a CPU."""
    return Training(_cpu.straight_line_keys(init), _cpu.straight_line_keys(step))


def _init(
    agent: Agent,
    env: Env,
    params: Any,
    num_envs: int,
    total_steps: int | None,
    hyper: PyTree,
    key: Key,
    reset_pool: int | None = None,
) -> TrainState:
    if total_steps is not None and getattr(hyper, "schedule_steps", 0.0) is None:
        hyper = hyper.replace(schedule_steps=jnp.float32(total_steps))
    keys = jax.random.split(key, 2 + num_envs)
    agent_key, run_key = keys[0], keys[1]
    worlds.check_streams("num_envs", num_envs, env, _mesh.size(agent.axis_name))
    _mesh.share("num_envs", num_envs, _mesh.size(agent.axis_name))
    pool: PyTree = ()
    if reset_pool is not None:
        run_key, pool_key = jax.random.split(run_key)
        pool = starts.make_starts(env, params, jax.random.split(pool_key, reset_pool))
    envs = reset(agent, *with_starts(env, params, pool), keys[2:], num_envs, axis_name=agent.axis_name)
    worlds.check_observations(env, params, envs.obs)
    agent_state = agent.init(hyper, agent_key, _example(env, params, envs), num_envs)
    return vary_like(TrainState(agent_state, envs, run_key, jnp.zeros((), jnp.int32), pool), without=agent.axis_name)


def _next(agent: Agent, before: TrainState, agent_state: PyTree, envs: EnvsState, key: Key) -> TrainState:
    """The state after a step, for the next one in a loop."""
    after = TrainState(agent_state, envs, key, before.step + 1, before.starts)
    return vary_like(after, before, without=agent.axis_name)


def _example(env: Env, params: Any, envs: EnvsState) -> Transition:
    """Return one step of one environment, without batch axes and extras, all zeros, for `Agent.init`."""
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), envs.obs)
    flag = jnp.zeros((), bool)
    return Transition(obs, zeros(env.action_space(params)), jnp.zeros((), jnp.float32), flag, flag, obs)

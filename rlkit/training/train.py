"""A training run as a pair of pure functions."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rlkit._cpu.random_bits import plain, straight
from rlkit.spaces import zeros
from rlkit.training.rollout import EnvsState, reset, rollout
from rlkit.types import Agent, Array, ConfigError, Env, Key, PyTree, Transition


class TrainState(struct.PyTreeNode):
    """Everything a run is made of; saved and restored, it goes on as if nothing had happened."""

    agent: PyTree
    envs: EnvsState | Any  # another one where the environments are outside of JAX
    key: Key
    step: Array  # [] int32, calls of Training.step so far


class Training(NamedTuple):
    """`init(hyper, key) -> TrainState`, and `step(state) -> (state, metrics)`: one rollout and one update."""

    init: Callable[[PyTree, Key], TrainState]
    step: Callable[[TrainState], tuple[TrainState, dict[str, Array]]]


def make(agent: Agent, env: Env, params: Any, *, num_envs: int, num_steps: int) -> Training:
    """Join an agent and an environment into a training run.

    Both functions are pure: `jax.jit` them, `jax.lax.scan` over `step`, `jax.vmap` `init` over keys or hyper-parameters
    and `step` over the states.

    Args:
      agent, env, params: as made by an agent's `make` and by `envs.make`.
      num_envs: N, how many copies of the environment run side by side.
      num_steps: T, how many steps each makes in one rollout.

    Returns:
      A `Training`. The metrics of `step` are the agent's, and of the episodes that ended in this rollout:
        episode_return, episode_length: [] float32, means; NaN where none ended.
        num_episodes: [] int32.
        returns, lengths: [T, N] of each episode at the step where it ended; elsewhere NaN and 0.

    Raises:
      ConfigError: the agent cannot divide a rollout of this size.
    """
    agent.check(num_envs, num_steps)

    def step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        state = straight(state)
        next_key, update_key, rollout_keys = step_keys(state.key, num_steps, num_envs)
        envs, transitions, episodes = rollout(
            agent, env, params, agent.actor(state.agent), state.envs, rollout_keys, num_steps
        )
        agent_state, metrics = agent.update(state.agent, transitions, update_key)
        ended = episodes.lengths > 0
        num_episodes = ended.sum()
        metrics |= {
            "episode_return": jnp.sum(episodes.returns, where=ended) / num_episodes.astype(jnp.float32),
            "episode_length": episodes.lengths.sum() / num_episodes,
            "num_episodes": num_episodes,
            "returns": episodes.returns,
            "lengths": episodes.lengths,
        }
        return plain(TrainState(agent_state, envs, next_key, state.step + 1)), metrics

    return Training(partial(_init, agent, env, params, num_envs), step)


def step_keys(key: Key, num_steps: int, num_envs: int) -> tuple[Key, Key, Key]:
    """What `Training.step` makes of a state's key: that of the next state, the update's, and a rollout's [T, 2, N].

    One split and not two in turn: each costs the program its rounds of random bits again, wherever they are used.
    """
    keys = jax.random.split(key, 2 + num_steps * 2 * num_envs)
    return keys[0], keys[1], keys[2:].reshape(num_steps, 2, num_envs)


def offline(agent: Agent, env: Env, params: Any, *, num_envs: int, num_steps: int) -> Training:
    """A training run on what is in the agent's replay buffer, and on nothing else.

        state = pair.init(hyper, key)
        state = state.replace(agent=agent.add(state.agent, transitions))  # leaves [T, num_envs, ...], extras ()

    Args:
      agent: one that learns from a replay buffer.
      env, params: what its policy is for; no step of it is taken.
      num_envs: N, how many streams of transitions are stored side by side.
      num_steps: as which `replay_ratio` counts one call of `step`, in all streams together.

    Returns:
      A `Training` with the metrics of `make`; no episode ends.

    Raises:
      ConfigError: the agent has no replay buffer.
    """
    learn = agent.learn
    if learn is None:
        raise ConfigError("this agent learns from what it collects itself, not from a dataset; use iql or td3_bc")

    def step(state: TrainState) -> tuple[TrainState, dict[str, Array]]:
        state = straight(state)
        update_key, next_key = jax.random.split(state.key)
        agent_state, metrics = learn(state.agent, update_key, num_steps)
        metrics |= {
            "episode_return": jnp.array(jnp.nan),
            "episode_length": jnp.array(jnp.nan),
            "num_episodes": jnp.array(0),
            "returns": jnp.full((1, num_envs), jnp.nan),
            "lengths": jnp.zeros((1, num_envs), jnp.int32),
        }
        return plain(TrainState(agent_state, state.envs, next_key, state.step + 1)), metrics

    return Training(partial(_init, agent, env, params, num_envs), step)


def _init(agent: Agent, env: Env, params: Any, num_envs: int, hyper: PyTree, key: Key) -> TrainState:
    keys = jax.random.split(straight(key), 2 + num_envs)
    agent_key, run_key = keys[0], keys[1]
    envs = reset(agent, env, params, keys[2:], num_envs)
    agent_state = agent.init(hyper, agent_key, _example(env, params, envs), num_envs)
    return plain(TrainState(agent_state, envs, run_key, jnp.zeros((), jnp.int32)))


def _example(env: Env, params: Any, envs: EnvsState) -> Transition:
    """One step of one environment, without batch axes and extras, all zero: what Agent.init wants to see."""
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), envs.obs)
    flag = jnp.zeros((), bool)
    return Transition(obs, zeros(env.action_space(params)), jnp.zeros((), jnp.float32), flag, flag, obs)

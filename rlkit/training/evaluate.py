"""Evaluation of a policy over whole episodes, the same number from each environment."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.envs import reset_pool
from rlkit.networks.cores.recurrent import where_rows
from rlkit.ops._arrays import check_key
from rlkit.training import worlds
from rlkit.training.rollout import count_step, reset, successes
from rlkit.types import Agent, Array, Env, Key, PyTree


class Evaluation(NamedTuple):
    """Returns and lengths of E whole episodes of each of N environments."""

    returns: Array  # [N, E] float32, undiscounted; 0 where not finished
    lengths: Array  # [N, E] int32, in steps
    finished: Array  # [N, E] bool, False only where max_steps ended the episode
    # [N, E] float32, 1 where an episode was a success, else 0; NaN where infos do not say.
    successes: Any = jnp.nan


@_cpu.straight_line_keys
def evaluate(
    agent: Agent,
    env: Env,
    params: Any,
    actor: PyTree,
    key: Key,
    *,
    num_envs: int,
    episodes_per_env: int = 1,
    max_steps: int = 1_000_000,
) -> Evaluation:
    """Play whole episodes with `agent.policy` and frozen statistics.

    Each environment plays the same number of episodes, one after the other: the first episodes to finish would be
    short ones. The evaluation ends with the last episode, or after `max_steps` steps of each environment.

    Call it inside of `jax.jit`: outside, JAX compiles its loop again in every call.

    Args:
      agent, env, params: as for `training.make`.
      actor: `agent.actor(state.agent)`; nothing in it changes.
      key: not the key of the training, which an evaluation does not change.
      num_envs: N, environments; or players, where a world has several.
      episodes_per_env: E.
      max_steps: limit on the steps of each environment.

    Returns:
      `Evaluation`, of N * E episodes.
    """
    check_key(key)
    worlds.check_streams("num_envs", num_envs, env)
    reset_key, run_key = jax.random.split(key)
    start = reset(agent, env, params, reset_key, num_envs)
    empty = Evaluation(
        jnp.zeros((num_envs, episodes_per_env), jnp.float32),
        jnp.zeros((num_envs, episodes_per_env), jnp.int32),
        jnp.zeros((num_envs, episodes_per_env), bool),
        jnp.full((num_envs, episodes_per_env), jnp.nan, jnp.float32),
    )
    environments = jnp.arange(num_envs)
    if episodes_per_env == 1:
        env, params = reset_pool.for_one_episode(env, params, reset_key)

    def unfinished(carry):
        _, result, time = carry
        return (time < max_steps) & ~jnp.all(result.finished)

    def step(carry):
        state, result, time = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(run_key, time))
        memory, action, _ = jax.vmap(agent.policy, (None, 0, 0, 0))(
            actor, state.memory, state.obs, jax.random.split(act_key, num_envs)
        )
        obs, env_state, reward, terminated, truncated, info = worlds.step(
            env, params, jax.random.split(env_key, num_envs), state.env_state, action
        )
        done = terminated | truncated
        counts, episode_return, length, ended = count_step(state, reward, done, info)
        # An episode is stored in the first free place of its environment, and dropped if there is none.
        place = jnp.where(ended, result.finished.sum(1), episodes_per_env)
        success = successes(info, done.shape)
        success = jnp.full(done.shape, jnp.nan, jnp.float32) if success is None else success
        values = Evaluation(episode_return, length, ended, success)
        result = jax.tree.map(lambda x, value: x.at[environments, place].set(value, mode="drop"), result, values)
        after = state.replace(env_state=env_state, obs=obs, memory=where_rows(done, agent.memory, memory), **counts)
        return vary_like((after, result, time + 1), carry)

    carry = vary_like((start, empty, jnp.zeros((), jnp.int32)), actor)
    return jax.lax.while_loop(unfinished, step, carry)[1]

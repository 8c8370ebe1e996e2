"""Rollouts: transitions of many environments along time, each with its own policy memory."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlkit import _cpu, _mesh
from rlkit._mesh import vary_like
from rlkit.names import OWN_DONE, OWN_REWARD, success_name
from rlkit.networks.cores.recurrent import where_rows
from rlkit.ops._arrays import check_keys
from rlkit.training import worlds
from rlkit.types import Agent, Array, Env, Key, PyTree, StateNode, Transition


class EnvsState(StateNode):
    """State of N environments, or of N players of N / P worlds, between two rollouts."""

    env_state: PyTree  # [N / P, ...], of the worlds, each with P players
    obs: PyTree  # [N, ...]
    memory: PyTree  # [N, ...] the policy's, before this observation
    # Sum of the rewards of the current episode, and what rounding has added to it. They are one array because a loop
    # with one array more is slower where there are few environments.
    episode_return: Array  # [N, 2] float32
    episode_length: Array  # [N] int32, steps of the current episode


class Episodes(struct.PyTreeNode):
    """Returns and lengths of the episodes that ended in a rollout."""

    returns: Array  # [T, N] float32, the return of the episode that ended at this step; NaN elsewhere
    lengths: Array  # [T, N] int32, its length in steps; 0 elsewhere
    # [T, N] float32, 1 where it was a success, else 0; NaN elsewhere. None where infos have none.
    successes: Array | None = None


def reset(agent: Agent, env: Env, params: Any, key: Key, num_envs: int, *, axis_name: str | None = None) -> EnvsState:
    """Start the first episodes of N environments; `key` is one key, or [N], one for each environment.

    Of an environment with P players, N counts players, and N / P worlds start, see `rlkit.training.worlds`. Each device
    of the mesh axis `axis_name` starts its own of them, as one device alone would.
    """
    check_keys(key)
    worlds.check_streams("num_envs", num_envs, env)
    keys = _mesh.own(key if key.ndim else jax.random.split(key, num_envs), axis_name)
    obs, env_state = worlds.reset(env, params, keys)
    state = EnvsState(
        env_state=env_state,
        obs=obs,
        memory=_mesh.own(memories(agent, num_envs), axis_name),
        episode_return=jnp.zeros((*keys.shape, 2), jnp.float32),
        episode_length=jnp.zeros(keys.shape, jnp.int32),
    )
    return _mesh.vary(state, axis_name)


def count_step(
    state: EnvsState, reward: Array, done: Array, info: dict[str, Any]
) -> tuple[dict[str, Array], Array, Array, Array]:
    """Add a step of N environments to the returns and lengths of their episodes.

    They are of the task's own rewards and episodes, see `rlkit.types.Env`. The sum is compensated (Kahan 1965): in
    float32, a million small rewards would otherwise be lost one by one.

    Args:
      state: before the step.
      reward: [N] float32.
      done: [N] bool, where an episode of the learner's ended.
      info: of the step, leaves [N, ...].

    Returns:
      The fields of the next `EnvsState` that count; and of this step the return [N] float32 and the length [N] int32 of
      the episode so far, and [N] bool, where it has ended.
    """
    reward, ended = info.get(OWN_REWARD, reward), info.get(OWN_DONE, done)
    before, error = state.episode_return[:, 0], state.episode_return[:, 1]
    addend = reward - error
    total, length = before + addend, state.episode_length + 1
    sums = jnp.stack([total, (total - before) - addend], -1)
    counts = {
        "episode_return": jnp.where(ended[:, None], 0.0, sums),
        "episode_length": jnp.where(ended, 0, length),
    }
    return counts, total, length, ended


def memories(agent: Agent, num_envs: int) -> PyTree:
    """Return the policy's memory at the start of an episode of each environment, leaves [N, ...]."""
    if agent.memories is not None:
        return agent.memories(num_envs)
    return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (num_envs, *jnp.shape(x))), agent.memory)


def successes(info: dict[str, Any], shape: tuple[int, ...]) -> Array | None:
    """Return float32 of a shape, 1 where a step reached its goal, else 0; None where the infos do not say so."""
    found = None if (name := success_name(info)) is None else info[name]
    return None if getattr(found, "shape", None) != shape else jnp.asarray(found, jnp.bool_).astype(jnp.float32)


def rollout(
    agent: Agent,
    env: Env,
    params: Any,
    actor: PyTree,
    state: EnvsState,
    key: Key,
    num_steps: int,
    *,
    axis_name: str | None = None,
) -> tuple[EnvsState, Transition, Episodes]:
    """Let a fixed actor explore for `num_steps` in each of N environments.

    Call it inside of `jax.jit`: outside, JAX compiles its loop again in every call.

    Args:
      agent, env, params: as for `training.make`.
      actor: `agent.actor(...)`; it does not change.
      state: from `reset`, or from the rollout before.
      key: one key, or [T, 2, N], those of the actions and of the environments.
      num_steps: T.
      axis_name: of the mesh axis over whose devices the N environments are divided; None for one device.

    Returns:
      The environments after the last step, the transitions [T, N, ...], and the episodes that ended.
    """
    num_envs = state.episode_length.shape[0] * _mesh.size(axis_name)
    fresh = _mesh.own(memories(agent, num_envs), axis_name)

    def step(state: EnvsState, keys: Key):
        act_keys, env_keys = keys
        memory, action, extras = jax.vmap(agent.act, (None, 0, 0, 0))(actor, state.memory, state.obs, act_keys)
        obs, env_state, reward, terminated, truncated, info = worlds.step(
            env, params, env_keys, state.env_state, action
        )
        transition = Transition(state.obs, action, reward, terminated, truncated, info["final_observation"], extras)
        done = terminated | truncated
        counts, episode_return, length, ended = count_step(state, reward, done, info)
        if (success := successes(info, done.shape)) is not None:
            success = jnp.where(ended, success, jnp.nan)
        episodes = Episodes(jnp.where(ended, episode_return, jnp.nan), jnp.where(ended, length, 0), success)
        next_state = EnvsState(env_state=env_state, obs=obs, memory=where_rows(done, fresh, memory), **counts)
        return vary_like(next_state, state), _cpu.sequence(lambda x: x, (transition, episodes), max_bytes=128)

    check_keys(key)
    # All keys at once, split along one axis: a smaller and faster program than a split in each step.
    keys = key if key.ndim else jax.random.split(key, num_steps * 2 * num_envs).reshape(num_steps, 2, num_envs)
    keys = _mesh.own(keys, axis_name, dim=2)
    state, (transitions, episodes) = jax.lax.scan(step, vary_like(state, actor, keys), keys)
    return state, transitions, episodes

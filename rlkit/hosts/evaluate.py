"""Whole episodes of a policy in a pool: how good it is."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.hosts.processes import Interrupted
from rlkit.networks.recurrent import where_rows
from rlkit.training.evaluate import Evaluation
from rlkit.training.rollout import memories
from rlkit.types import Agent, ConfigError, PyTree


def play(
    agent: Agent,
    policy: Callable[..., Any],
    pool: Any,
    actor: PyTree,
    *,
    seed: int,
    episodes_per_env: int = 1,
    max_steps: int = 1_000_000,
) -> Evaluation:
    """Play whole episodes, the same number in each environment, as `training.evaluate` does.

    Args:
      agent: for the memory that an episode starts with.
      policy: (actor, memory, obs, key) -> memory, action, extras, over N environments; compiled.
      pool: of N environments; it is reset.
      actor: on the device to act on.
      seed: of the environments and of the policy's keys.
      episodes_per_env: E.
      max_steps: bound on the steps of each environment.

    Returns:
      An `Evaluation` of NumPy arrays. An episode that a failing worker broke off is not counted.

    Raises:
      Interrupted: what the pool was told to watch says so.
      ConfigError: a reward is not finite.
      HostError, ConfigError: what the pool raises.
    """
    num_envs = pool.num_envs
    shape, dtypes = (num_envs, episodes_per_env), (np.float32, np.int32, bool)
    result: Any = Evaluation(*(np.zeros(shape, dtype) for dtype in dtypes))  # pyright: ignore[reportArgumentType]
    obs, everyone, places = pool.reset(seed), np.arange(num_envs), np.zeros(num_envs, np.int64)
    fresh = jax.tree.map(jnp.asarray, memories(agent, num_envs))
    memory = fresh
    split = jax.jit(lambda key, time: jax.random.split(jax.random.fold_in(key, time), num_envs))
    device = next(iter(jax.tree.leaves(actor)[0].devices()))
    memory, fresh, key = jax.device_put((memory, fresh, jax.random.key(seed % 2**31)), device)
    for time in range(max_steps):
        if pool.interrupted():
            raise Interrupted
        memory, action, _ = policy(actor, memory, obs, split(key, np.uint32(time)))
        step = pool.step(jax.tree.map(np.asarray, action), copy=False)
        obs = step.obs
        if (bad := ~np.isfinite(step.reward) & step.real).any():
            env = int(np.argmax(bad))
            raise ConfigError(
                f"env={pool.name!r}: reward of environment {env} in an evaluation: expected finite numbers, "
                f"got {step.reward[env]}; mend the environment's step"
            )
        ended = step.lengths > 0
        for env in everyone[ended & (places < episodes_per_env)]:
            place = (env, places[env])
            result.returns[place], result.lengths[place], result.finished[place] = (
                step.returns[env],
                step.lengths[env],
                True,
            )
            places[env] += 1
        if (places == episodes_per_env).all():
            break
        new = ended | ~step.real
        if jax.tree.leaves(memory) and new.any():
            memory = where_rows(jnp.asarray(new), fresh, memory)
    return result

"""Evaluation of a policy by whole episodes in a pool."""

from collections.abc import Callable
from time import monotonic as clock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.hosts.processes import Interrupted
from rlkit.networks.cores.recurrent import where_rows
from rlkit.training.evaluate import Evaluation
from rlkit.training.rollout import memories
from rlkit.types import Agent, ConfigError, PyTree

_FIRST_SECONDS, _EVERY_SECONDS = 2.0, 10.0  # to the first line of progress, and between two of them


def play(
    agent: Agent,
    policy: Callable[..., Any],
    pool: Any,
    actor: PyTree,
    *,
    seed: int,
    episodes_per_env: int = 1,
    max_steps: int = 1_000_000,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Play whole episodes, the same number in each environment, as `training.evaluate` does.

    Args:
      agent: provides the initial memory of an episode.
      policy: compiled function of N environments: (actor, memory, obs, key) -> memory, action, extras.
      pool: of N environments; it is reset.
      actor: on the device for acting.
      seed: of the environments and of the policy's keys.
      episodes_per_env: E.
      max_steps: largest number of steps of each environment.
      on_progress: called with a line of text after two seconds, and then every ten.

    Returns:
      An `Evaluation` of NumPy arrays. An episode that a failing worker cut short is not counted.

    Raises:
      Interrupted: the function that the pool watches returned true.
      ConfigError: a reward is not finite.
      HostError, ConfigError: raised by the pool.
    """
    num_envs = pool.num_envs
    shape, dtypes = (num_envs, episodes_per_env), (np.float32, np.int32, bool)
    zeros: Any = [np.zeros(shape, dtype) for dtype in dtypes]
    result: Any = Evaluation(*zeros, successes=np.full(shape, np.nan, np.float32))
    obs, env_indices, counts = pool.reset(seed), np.arange(num_envs), np.zeros(num_envs, np.int64)
    initial_memory = jax.tree.map(jnp.asarray, memories(agent, num_envs))
    split = jax.jit(lambda key, time: jax.random.split(jax.random.fold_in(key, time), num_envs))
    device = next(iter(jax.tree.leaves(actor)[0].devices()))
    initial_memory, key = jax.device_put((initial_memory, jax.random.key(seed % 2**31)), device)
    memory, shown = initial_memory, clock() - _EVERY_SECONDS + _FIRST_SECONDS
    for time in range(max_steps):
        if pool.interrupted():
            raise Interrupted
        memory, action, _ = policy(actor, memory, obs, split(key, np.uint32(time)))
        step = pool.step(jax.tree.map(np.asarray, action), copy=False)
        obs = step.obs
        if (not_finite := ~np.isfinite(step.reward) & step.real).any():
            env = int(np.argmax(not_finite))
            raise ConfigError(
                f"env={pool.name!r}: reward of {pool.locate(env)} in an evaluation: expected finite numbers, "
                f"got {step.reward[env]}; fix the environment's step"
            )
        if clock() - shown > _EVERY_SECONDS:
            shown = clock()
            played, wanted = (int(x) // pool.num_players for x in (counts.sum(), result.finished.size))
            on_progress(f"evaluating: {played} of {wanted} episodes, {time:,} steps of each")
        ended = step.lengths > 0
        for env in env_indices[ended & (counts < episodes_per_env)]:
            episode = (env, counts[env])
            result.returns[episode], result.lengths[episode] = step.returns[env], step.lengths[env]
            result.finished[episode], result.successes[episode] = True, step.successes[env]
            counts[env] += 1
        if (counts == episodes_per_env).all():
            break
        begins = step.terminated | step.truncated | ~step.real
        if jax.tree.leaves(memory) and begins.any():
            memory = where_rows(jnp.asarray(begins), initial_memory, memory)
    return result

"""Rewards of other goals than an environment's own, for replay with goals in hindsight."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.hosts import registry
from rlkit.hosts.worker.recipe import constructor
from rlkit.runs.config.errors import plain_value, show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.types import Array, ConfigError, PyTree

_KEEP_REWARDS = ("time_limit", "clip_action", "sticky_action")  # wrappers
Goals = Callable[[PyTree, PyTree], tuple[Array, Array]]


def in_jax(env: Any, params: Any) -> Callable[[PyTree, PyTree], Any] | None:
    """Return `compute_reward(achieved, desired, params)` of an environment, bound to its params; None without one."""
    while env is not None:
        if (function := getattr(env, "compute_reward", None)) is not None:
            return lambda achieved, desired: function(achieved, desired, params)
        env = getattr(env, "env", None)
    return None


def of_host(config: RunConfig) -> Goals | None:
    """Return a function for JAX that calls `compute_reward` of an environment outside of JAX; None without one.

    Its interface is that of Gymnasium-Robotics: `compute_reward(achieved, desired, info)` and, where it has it,
    `compute_terminated`. It is called for a whole batch at once if it takes one, and else for each pair of goals.
    """
    env = constructor(registry.recipe(config.run.env, plain_value(config.task.kwargs)))()
    bare = getattr(env, "unwrapped", env)
    if not hasattr(bare, "compute_reward"):
        env.close()
        return None
    compute_reward, compute_end = bare.compute_reward, getattr(bare, "compute_terminated", None)
    space = env.observation_space["desired_goal"]
    rank, batched = len(space.shape), _takes_batches(compute_reward, space)

    def on_host(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lead = achieved.shape[: achieved.ndim - rank]
        goals = [np.reshape(x, (-1, *space.shape)) for x in (achieved, desired)]
        pairs = list(zip(*goals, strict=True))
        rewards = compute_reward(*goals, {}) if batched else [compute_reward(*pair, {}) for pair in pairs]
        # Of one pair of goals in Gymnasium-Robotics.
        ends = [False if compute_end is None else compute_end(*pair, {}) for pair in pairs]
        return np.asarray(rewards, np.float32).reshape(lead), np.asarray(ends, bool).reshape(lead)

    shapes = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.bool_)
    return lambda achieved, desired: jax.pure_callback(on_host, shapes, achieved, desired, vmap_method="broadcast_all")


def _takes_batches(compute_reward: Callable[..., Any], space: Any) -> bool:
    """True for a function that returns for two pairs of goals what it returns for each alone."""
    achieved, desired = (np.stack([space.sample(), space.sample()]) for _ in range(2))
    alone = [compute_reward(*pair, {}) for pair in zip(achieved, desired, strict=True)]
    try:
        return np.array_equal(np.asarray(compute_reward(achieved, desired, {})), alone)
    except Exception:  # whatever it raises for arrays of this shape
        return False


def with_goal_reward(config: RunConfig, environments: Any) -> RunConfig:
    """Return a config whose agent has the function `goal_reward()` of its environments, where it needs one.

    It needs one where it replays with goals in hindsight and names none itself.

    Raises:
      ConfigError: a wrapper changes what the environment's rewards are of.
    """
    if getattr(config.agent, "replay", None) != "hindsight" or config.agent.goal_reward != "environment":
        return config
    for wrapper in config.run.wrappers:
        if wrapper.partition(":")[0] not in _KEEP_REWARDS:
            raise ConfigError(
                f"wrapper {show_value(wrapper)} may change observations or rewards, and then those of other goals are "
                "not known for replay='hindsight'; leave it out, or set goal_reward"
            )
    function = environments.goal_reward()
    return (
        config if function is None else replace(config, agent=config.agent.model_copy(update={"goal_reward": function}))
    )

"""The function of rewards of other goals that a run's agent has, for replay with goals in hindsight."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from rlkit.agents.common import own_parts
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.worker import wrapper_names
from rlkit.names import ACHIEVED_GOAL, DESIRED_GOAL
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.types import ConfigError, PyTree

_KEEP_REWARDS = ("time_limit", "clip_action", "sticky_action")  # wrappers


def in_jax(env: Any, params: Any) -> Callable[[PyTree, PyTree], Any] | None:
    """Return `compute_reward(achieved, desired, params)`, bound to params, of the outermost wrapper that has one.

    None where neither a wrapper nor the environment has one.
    """
    while env is not None:
        if (function := getattr(env, "compute_reward", None)) is not None:
            # Errors show the function by its name.
            return wraps(function)(lambda achieved, desired: function(achieved, desired, params))
        env = getattr(env, "env", None)
    return None


def are_of_environment(config: RunConfig) -> bool:
    """True for a config that replays with goals in hindsight, by the rewards of its environment."""
    agent = config.agent
    return getattr(agent, "replay", None) == "hindsight" and agent.goal_reward == "environment"


def with_goal_reward(config: RunConfig, environments: Any) -> RunConfig:
    """Return a config whose agent has the function of rewards that replay with goals in hindsight needs.

    It is `goal_reward` of the environments, unless the config has a function of the user's. That one gets the
    integers of an environment outside of JAX as the environment itself counts them.

    Raises:
      ConfigError: a wrapper changes what the environment's rewards are of.
    """
    if getattr(config.agent, "replay", None) != "hindsight":
        return config
    if not are_of_environment(config):
        env = environments.env
        if not isinstance(env, HostEnv) or env.counts_from_0:
            return config
        return _with(config, _of_native(own_parts.find("goal_reward", config.agent.goal_reward), env))
    for wrapper in config.run.wrappers:
        # Rewards of the user's own are compared with `compute_reward` before training.
        if wrapper.partition(":")[0] not in _KEEP_REWARDS and not wrapper_names.is_own(wrapper):
            raise ConfigError(
                f"wrapper {show_value(wrapper)} may change observations or rewards, and then those of other goals are "
                "not known for replay='hindsight'; leave it out, or set goal_reward"
            )
    function = environments.goal_reward
    return config if function is None else _with(config, function)


def _of_native(function: Callable[..., Any], env: HostEnv) -> Callable[[PyTree, PyTree], Any]:
    """A function of goals in the environment's own numbering, as one of goals that count from 0."""

    @wraps(function)
    def of_stored(achieved: PyTree, desired: PyTree) -> Any:
        goals = env.native_obs({ACHIEVED_GOAL: achieved, DESIRED_GOAL: desired})
        return function(goals[ACHIEVED_GOAL], goals[DESIRED_GOAL])

    return of_stored


def _with(config: RunConfig, function: Callable[..., Any]) -> RunConfig:
    return replace(config, agent=config.agent.model_copy(update={"goal_reward": function}))

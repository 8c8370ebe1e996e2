"""Adapters of environments of the user's own, in the styles of gymnax."""

from typing import Any

import jax.numpy as jnp

from rlkit.envs.gymnax import GymnaxEnv
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Env, Key, PyTree

_LIMITS = ("max_steps_in_episode", "max_timesteps")  # names of the time limit in gymnax and in Craftax


class FiveValues(GymnaxEnv):
    """An environment with `reset_env`, a `step_env` of five values, and `is_terminal`.

    `done` alone does not distinguish termination from truncation, so `is_terminal` is called again with the time limit
    of the parameters disabled: an episode that it still ends is terminated, any other one truncated.
    """

    def __init__(self, name: str, env: Any, limit_field: str | None):
        super().__init__(name, env)
        self.limit_field = limit_field

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        obs, next_state, reward, done, *_ = self.env.step_env(key, state, action, params)
        done = jnp.asarray(done, bool)
        if self.limit_field is None:
            return obs, next_state, reward, done, jnp.zeros((), bool)
        limit = getattr(params, self.limit_field)
        never = jnp.full_like(limit, jnp.iinfo(jnp.result_type(limit)).max)
        terminated = done & self.env.is_terminal(next_state, params.replace(**{self.limit_field: never}))
        return obs, next_state, reward, terminated, done & ~terminated


def adapt(env: Any, params: Any = None, *, name: str | None = None) -> tuple[Env, Any]:
    """Adapt an environment of your own to rlkit's protocol, `rlkit.types.Env`.

        env, params = envs.adapt(MyEnv())
        envs.check(env, params, jax.random.key(0))

    Args:
      env: one that has rlkit's protocol already, which is returned as it is; or one with gymnax's spaces and, without
        any reset of their own, `reset_env(key, params) -> obs, state` and `step_env(key, state, action, params) -> obs,
        state, reward, end, info`. With `is_truncated(state, params)`, as in gymnax 1, `end` is termination alone.
        Without it, as in gymnax before 1.0, `end` is any end of an episode, and where the parameters hold a time limit
        (max_steps_in_episode or max_timesteps), there is also `is_terminal(state, params)`.
      params: its parameters; by default `env.default_params`, or None where there are none.
      name: of the environment in errors.

    Raises:
      ConfigError: the steps without a reset are missing, so that the observation before a reset would be lost, or there
        is a time limit and no function that distinguishes it from termination.
    """
    name = name or str(getattr(env, "name", type(env).__name__))
    params = getattr(env, "default_params", None) if params is None else params
    if not hasattr(env, "step_env") and all(callable(getattr(env, method, None)) for method in ("reset", "step")):
        spaces = [getattr(env, field, None) for field in ("observation_space", "action_space")]
        if all(callable(space) and isinstance(space(params), Space) for space in spaces):
            return env, params
    if hasattr(env, "unwrapped") and not hasattr(env, "step_env"):
        raise ConfigError(f"env={name!r} must be an environment in JAX, and this is Gymnasium's; use rlkit.hosts.make")
    for method in ("reset_env", "step_env", "observation_space", "action_space"):
        if not callable(getattr(env, method, None)):
            reason = "; a step that resets by itself loses the final observation" if method == "step_env" else ""
            raise ConfigError(f"env={name!r} has no {method}(){reason}; write one, or implement rlkit.types.Env")
    if callable(getattr(env, "is_truncated", None)):
        return GymnaxEnv(name, env), params
    limit_field = next((field for field in _LIMITS if hasattr(params, field)), None)
    if limit_field and not callable(getattr(env, "is_terminal", None)):
        raise ConfigError(
            f"env={name!r} has {limit_field} but no is_terminal(state, params), which distinguishes termination from "
            "the time limit; write one, or use the wrapper time_limit"
        )
    return FiveValues(name, env, limit_field), params

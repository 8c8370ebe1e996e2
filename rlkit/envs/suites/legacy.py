"""Environments in gymnax's style whose step still returns five values: obs, state, reward, done, info."""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit.envs.adapter import Adapter, gymnax_space, lenient
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree

_CLOCKS = ("max_steps_in_episode", "max_timesteps")  # what gymnax and Craftax call their time limit


class FiveValues(Adapter):
    """An environment with `reset_env`, a `step_env` of five values, and `is_terminal`.

    `done` alone does not say why an episode ended, so `is_terminal` is asked again with the clock of the parameters
    turned off: what it then says is termination, and any other end is truncation.
    """

    def __init__(self, name: str, env: Any, clock: str | None):
        self.name = name
        self.env = env
        self.clock = clock

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        return self.env.reset_env(key, params)

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        obs, after, reward, done, *_ = self.env.step_env(key, state, action, params)
        done = jnp.asarray(done, bool)
        if self.clock is None:
            return obs, after, reward, done, jnp.zeros((), bool)
        limit = getattr(params, self.clock)
        never = jnp.full_like(limit, jnp.iinfo(jnp.result_type(limit)).max)
        terminated = done & self.env.is_terminal(after, params.replace(**{self.clock: never}))
        return obs, after, reward, terminated, done & ~terminated

    def observation_space(self, params: Any) -> Space:
        """The observations' space; bounds that depend on traced parameters count as infinite."""
        with jax.ensure_compile_time_eval(), lenient():
            return gymnax_space(self.env.observation_space(params))

    def action_space(self, params: Any) -> Space:
        """The actions' space; bounds that depend on traced parameters count as infinite."""
        with jax.ensure_compile_time_eval(), lenient():
            return gymnax_space(self.env.action_space(params))


def adapt(env: Any, params: Any = None, *, name: str | None = None) -> tuple[FiveValues, Any]:
    """An environment of your own, in the style of gymnax before 1.0, in rlkit's protocol.

        env, params = envs.adapt(MyEnv())
        envs.check(env, params, jax.random.key(0))

    Args:
      env: has `reset_env(key, params) -> obs, state` and `step_env(key, state, action, params) -> obs, state, reward,
        done, info`, both without any reset of their own, and spaces like gymnax's. Where its parameters hold a time
        limit (max_steps_in_episode or max_timesteps), `is_terminal(state, params)` has to be what `done` is made of.
      params: its parameters; `env.default_params` by default.
      name: how errors call it.

    Raises:
      ConfigError: the bare steps are missing, so that the observation before a reset would be lost, or there is a time
        limit and nothing that tells its ends from others.
    """
    name = name or str(getattr(env, "name", type(env).__name__))
    for method in ("reset_env", "step_env", "observation_space", "action_space"):
        if not callable(getattr(env, method, None)):
            why = "; a step that resets by itself loses the final observation" if method == "step_env" else ""
            raise ConfigError(f"env={name!r} has no {method}(){why}; write one, or keep to rlkit.types.Env")
    params = env.default_params if params is None else params
    clock = next((field for field in _CLOCKS if hasattr(params, field)), None)
    if clock and not callable(getattr(env, "is_terminal", None)):
        raise ConfigError(
            f"env={name!r} has {clock} but no is_terminal(state, params), so that nothing tells a time limit from the "
            "end of the world; write one, or use the wrapper time_limit"
        )
    return FiveValues(name, env, clock), params

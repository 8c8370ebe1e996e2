"""Brax in rlkit's protocol: the bare environments, with fresh starts and true final observations.

Brax's own wrapper for training goes back to the first state of each stream at every episode end; it is not used here.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import Adapter, Limit, Timed, at_least_one, construct, find, lenient, library, unbounded
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree


class PhysicsEnv(Adapter):
    """An environment with Brax's `reset(key)` and `step(state, action)`, for Brax and MuJoCo Playground.

    `done` is an end of the world; the time limit of the parameters truncates. Actions are in [-1, 1].
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        with lenient():
            self._obs_space = _space(jax.eval_shape(lambda key: env.reset(key).obs, jax.eval_shape(jax.random.key, 0)))
        self._action_space = spaces.Box(-1, 1, (int(env.action_size),))

    def _start(self, key: Key, params: Limit) -> tuple[PyTree, Timed]:
        state = self.env.reset(key)
        return state.obs, Timed(state, jnp.zeros((), jnp.int32))

    def _advance(
        self, key: Key, state: Timed, action: PyTree, params: Limit
    ) -> tuple[PyTree, Timed, Array, Array, Array]:
        del key  # what is random in a step draws from the state's own key
        after, elapsed = self.env.step(state.env_state, action), state.elapsed + 1
        truncated = elapsed >= params.max_steps_in_episode
        return after.obs, Timed(after, elapsed), after.reward, after.done > 0, truncated

    def observation_space(self, params: Any) -> Space:
        return self._obs_space

    def action_space(self, params: Any) -> Space:
        return self._action_space


CANNOT_RUN = {"swimmer": "Brax computes water with a call that JAX no longer has; try brax:walker2d"}


def names() -> list[str]:
    """Brax's names: ant, halfcheetah, ..."""
    return sorted(set(library("brax.envs", "brax")._envs) - {"fast", *CANNOT_RUN})  # fast is for Brax's own tests


def make(task: str, *, max_steps_in_episode: int = 1000, **kwargs: Any) -> tuple[PhysicsEnv, Limit]:
    """A Brax environment and its parameters.

    Args:
      task: Brax's name for it, such as ant.
      max_steps_in_episode: when an episode is truncated.
      kwargs: arguments of Brax's class: backend (generalized, spring, positional, mjx), reset_noise_scale, ...

    Raises:
      ConfigError: Brax is not installed, the name is unknown, the task cannot run, or an argument does not fit.
    """
    if task in CANNOT_RUN:
        raise ConfigError(f"env='brax:{task}' cannot run: {CANNOT_RUN[task]}")
    name = f"brax:{find(task, names(), 'brax:')}"
    limit = Limit(at_least_one(f"{name}.max_steps_in_episode", max_steps_in_episode))
    constructor = library("brax.envs", "brax")._envs[task]
    env = construct(name, constructor, kwargs, ("max_steps_in_episode", "backend", "n_frames", "debug"))
    return PhysicsEnv(name, env), limit


def _space(obs: PyTree) -> Space:
    """The space of an observation of which only shapes are known; its dictionaries may be nested."""
    if hasattr(obs, "items"):
        return spaces.Dict({name: _space(child) for name, child in obs.items()})
    return unbounded(obs.shape, obs.dtype)

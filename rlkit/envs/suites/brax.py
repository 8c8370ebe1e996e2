"""Brax in rlkit's protocol, with a new random start of every episode and true final observations.

Brax's own wrapper for training returns to the first state of each stream at every episode end; it is not used here.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import (
    Adapter,
    TimedState,
    TimeLimitParams,
    construct,
    known_task,
    library,
    positive_integer,
    standard_promotion,
    unbounded_box,
)
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Key, PyTree


class PhysicsEnv(Adapter):
    """An environment with Brax's `reset(key)` and `step(state, action)`, for Brax and MuJoCo Playground.

    `done` is termination; the time limit of the parameters truncates. Actions are in [-1, 1].
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        with standard_promotion():
            self._obs_space = _space(jax.eval_shape(lambda key: env.reset(key).obs, jax.eval_shape(jax.random.key, 0)))
        self._action_space = spaces.Box(-1, 1, (int(env.action_size),))

    def _start(self, key: Key, params: TimeLimitParams) -> tuple[PyTree, TimedState]:
        state = self.env.reset(key)
        return state.obs, TimedState(state, jnp.zeros((), jnp.int32))

    def _advance(
        self, key: Key, state: TimedState, action: PyTree, params: TimeLimitParams
    ) -> tuple[PyTree, TimedState, Array, Array, Array]:
        del key  # a random step draws from the key in the state
        next_state, elapsed = self.env.step(state.env_state, action), state.elapsed + 1
        truncated = elapsed >= params.max_steps_in_episode
        return next_state.obs, TimedState(next_state, elapsed), next_state.reward, next_state.done > 0, truncated


CANNOT_RUN = {"swimmer": "Brax computes water with a call that JAX no longer has; try brax:walker2d"}


def names() -> list[str]:
    """Return Brax's names: ant, halfcheetah, ..."""
    return sorted(set(library("brax.envs", "brax")._envs) - {"fast", *CANNOT_RUN})  # fast is for Brax's own tests


def make(task: str, /, *, max_steps_in_episode: int = 1000, **kwargs: Any) -> tuple[PhysicsEnv, TimeLimitParams]:
    """Make a Brax environment and its parameters.

    Args:
      task: a name of Brax, such as ant.
      max_steps_in_episode: number of steps after which an episode is truncated.
      kwargs: arguments of Brax's class: backend (generalized, spring, positional, mjx), reset_noise_scale, ...

    Raises:
      ConfigError: Brax is not installed, the name is unknown, the task cannot run, or an argument does not fit.
    """
    if task in CANNOT_RUN:
        raise ConfigError(f"env='brax:{task}' cannot run: {CANNOT_RUN[task]}")
    name = f"brax:{known_task(task, names(), 'brax:')}"
    limit = TimeLimitParams(positive_integer(f"{name}.max_steps_in_episode", max_steps_in_episode))
    constructor = library("brax.envs", "brax")._envs[task]
    env = construct(name, constructor, kwargs, ("max_steps_in_episode", "backend", "n_frames", "debug"))
    return PhysicsEnv(name, env), limit


def _space(obs: PyTree) -> Space:
    """Return an unbounded space for the shapes of an observation; its dictionaries may be nested."""
    if hasattr(obs, "items"):
        return spaces.Dict({name: _space(child) for name, child in obs.items()})
    return unbounded_box(obs.shape, obs.dtype)

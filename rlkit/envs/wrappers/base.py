"""The base class of the wrappers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Env, Key, PyTree, num_players

Step = tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]


@dataclass(frozen=True)
class Wrapper:
    """Base class of the wrappers; it passes everything through to `env`."""

    env: Env

    @property
    def name(self) -> str:
        return getattr(self.env, "name", type(self.env).__name__)

    @property
    def num_players(self) -> int:
        return num_players(self.env)

    @property
    def shared_reward(self) -> bool:
        return getattr(self.env, "shared_reward", False)

    @property
    def alternates(self) -> bool:
        return getattr(self.env, "alternates", False)

    def each(self, function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """Return a function of one player's arrays as one of all players' of a world, which have a first axis [P]."""
        return function if self.num_players == 1 else jax.vmap(function)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        return self.env.reset(key, params)

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        return self.env.step(key, state, action, params)

    def observation_space(self, params: Any) -> Space:
        return self.env.observation_space(params)

    def action_space(self, params: Any) -> Space:
        return self.env.action_space(params)


def world_done(done: Array) -> Array:
    """Return [] bool, where an episode ended, from the flags [] or [P] of its players, for whom it ends together."""
    return done if done.ndim == 0 else jnp.any(done)


def check_count(wrapper: str, n: int, most: int) -> None:
    """Raise a ConfigError unless 1 <= n <= most."""
    if n < 1:
        raise ConfigError(f"wrapper {wrapper}: n={n} must be at least 1; try 1")
    if n > most:
        raise ConfigError(f"wrapper {wrapper}: n={str(n)[:20]} must be at most {most}; try {most}")

"""Environments by name."""

import difflib
from typing import Any

from rlkit.envs import gymnax
from rlkit.types import ConfigError, Env


def names() -> list[str]:
    """Every name that `make` accepts."""
    return gymnax.names()


def make(name: str, **kwargs: Any) -> tuple[Env, Any]:
    """An environment and its parameters, by name.

    Args:
      name: a gymnax id (CartPole-v1, Breakout-MinAtar, ...); `names()` lists them.
      kwargs: fields of the environment's parameters (max_steps_in_episode=5) or arguments of its constructor.

    Returns:
      env, params: `env.reset(key, params)`, `env.step(key, state, action, params)`; see `rlkit.types.Env`.

    Raises:
      ConfigError: for an unknown name or keyword, naming the nearest, and for a task that cannot run.
    """
    known = names()
    if name not in known and name not in gymnax.CANNOT_RUN:
        lower = {other.lower(): other for other in known}
        near = [lower[match] for match in difflib.get_close_matches(str(name).lower(), lower, 3, 0.4)]
        hint = f"try {', '.join(near)}" if near else "see rlkit.envs.names()"
        raise ConfigError(f"env={name!r} is not known; {hint}")
    return gymnax.make(name, **kwargs)

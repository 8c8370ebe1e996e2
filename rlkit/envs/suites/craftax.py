"""Craftax in rlkit's protocol."""

from typing import Any

from rlkit.envs.adapter import known_task, library, replace_params, standard_promotion
from rlkit.envs.suites import legacy
from rlkit.types import ConfigError, Env

_NAMES = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")


def names() -> list[str]:
    """Return Craftax's names: Craftax-Symbolic-v1, ..."""
    return list(_NAMES)


def make(task: str, /, **kwargs: Any) -> tuple[Env, Any]:
    """Make a Craftax environment and its parameters.

    A new world is generated in every step, since any step may be an episode's last.

    Args:
      task: a name of Craftax.
      kwargs: fields of Craftax's parameters, such as max_timesteps, the time limit of an episode.

    Raises:
      ConfigError: Craftax is not installed or its cache is incomplete, the name is unknown, or a parameter does not
        fit.
    """
    name = f"craftax:{known_task(task, _NAMES, 'craftax:')}"
    try:
        with standard_promotion():  # importing the game computes with mixed types
            env = library("craftax.craftax_env", "craftax").make_craftax_env_from_name(task, auto_reset=False)
    except EOFError:
        raise ConfigError(
            f"env={name!r}: Craftax's cache of textures is incomplete, as its first use was stopped; delete "
            "texture_cache*.pbz2 in the folders `assets` of the package craftax"
        ) from None
    return legacy.adapt(env, replace_params(name, env.default_params, kwargs), name=name)

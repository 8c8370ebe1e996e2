"""Runs that are started by an agent and an environment alone: what their agent declares fills in the keys."""

from collections.abc import Mapping
from typing import Any

import jax

from rlkit import agents, envs
from rlkit.agents.base import Task
from rlkit.hosts.registry import is_host
from rlkit.names import OWN_CODE
from rlkit.networks.features import is_image
from rlkit.runs.config.schema import schema
from rlkit.spaces import leaf_spaces
from rlkit.types import ConfigError, num_players


def is_agent(name: str) -> bool:
    """Return true for the name of an agent, and for `module:make`, an agent of the user's own."""
    return name in agents.names() or OWN_CODE.fullmatch(name) is not None


def with_agent_defaults(values: Mapping[Any, Any]) -> tuple[dict[Any, Any], tuple[str, ...]]:
    """Fill in a config without `num_envs` or `num_steps` by `run_defaults` of its agent, and one without `total_steps`.

    Args:
      values: keys and values, with the name of an agent and perhaps of an environment.

    Returns:
      The values with those that were filled in, and the keys of the latter.
    """
    missing = [key for key in ("num_envs", "num_steps", "total_steps") if key not in values]
    if not missing or not isinstance(env := values.get("env"), str):
        return dict(values), ()
    agent, stored = values["agent"], values.get("dataset") is not None
    in_jax = not is_host(env)
    images, players = _images_and_players(env, values.get("env_kwargs"))
    task = Task(in_jax, images, stored)
    defaults, fields = agents.get(agent).Config.run_defaults(task), schema(agent).fields
    known = set(fields)
    if missing == ["total_steps"]:
        defaults = {"total_steps": defaults["total_steps"]}
    if values.get("replay") == "hindsight":  # of single steps, each with a goal of its own
        known -= {"n_step", "store_obs_once"}
    filled = {key: value for key, value in defaults.items() if key in known and key not in values}
    if "num_envs" in filled and players > 1:  # they count players of whole worlds
        filled["num_envs"] = num_envs = players * max(1, filled["num_envs"] // players)
        if "capacity" in known and "capacity" not in values:  # of whole rows
            capacity = filled.get("capacity", fields["capacity"].default)
            filled["capacity"] = capacity // num_envs * num_envs
    return {**values, **filled}, tuple(filled)


def _images_and_players(env: str, kwargs: Any) -> tuple[bool, int]:
    """True for an Atari game, and for an environment in JAX whose observations hold an image; and its players.

    Of other environments outside of JAX neither is known before a worker makes one.
    """
    if is_host(env):
        return env.startswith(("atari:", "ale:")), 1
    try:
        made, params = envs.make(env, **(kwargs or {}))
    except (ConfigError, TypeError):
        return False, 1  # validation reports it
    return any(map(is_image, jax.tree.leaves(leaf_spaces(made.observation_space(params))))), num_players(made)

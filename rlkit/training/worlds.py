"""Worlds of one or several players, stepped as streams: the axis of players is folded here, and nowhere else.

A world of P players is one environment, one key and one state. Its players are P streams of a rollout, one after the
other, so that N streams are N / P worlds: stream `w * P + p` is player p of world w. With P = 1, streams are worlds.
"""

from typing import Any

import jax
import numpy as np

from rlkit.names import shorten
from rlkit.spaces import Space, leaf_spaces
from rlkit.types import Agent, Array, ConfigError, Env, Key, PyTree, num_players

Step = tuple[PyTree, PyTree, Array, Array, Array, dict[str, Any]]


def check_streams(name: str, value: int, env: Any, devices: int = 1) -> None:
    """Raise ConfigError where a number of streams is not one of whole worlds, as many on each of the devices.

    Of one player, any number passes.
    """
    players = num_players(env)
    if players > 1 and value % (step := players * devices):
        below = value // step * step
        remedy = " or ".join(str(multiple) for multiple in (below, below + step) if multiple)
        divided = f" times the {devices} devices, {step}" if devices > 1 else ""
        raise ConfigError(
            f"{name}={value} counts players, and must be a multiple of the {players} of a world{divided}; try {remedy}"
        )


def check_env(env: Any, params: Any) -> tuple[Space, Space]:
    """Return the spaces of observations and of actions. Raises ConfigError where it is no environment in JAX."""
    for method in ("reset", "step", "observation_space", "action_space"):
        if not callable(getattr(env, method, None)):
            raise ConfigError(
                f"env={shorten(repr(env))} must be an environment in JAX, and it has no function {method}; "
                "envs.make(name) returns one and its parameters, envs.adapt takes one like gymnax's, and rlkit.hosts "
                "Gymnasium's"
            )
    try:
        return env.observation_space(params), env.action_space(params)
    except Exception as error:
        raise ConfigError(
            f"params={shorten(repr(params))}: the spaces of env={_name(env)!r} cannot be made of them "
            f"({shorten(f'{type(error).__name__}: {error}')}); use the parameters that envs.make returned with it"
        ) from error


def check_agent(agent: Agent, obs_space: Space, action_space: Space) -> None:
    """Raise ConfigError where it is no agent, or was made for spaces of other sizes."""
    if not callable(getattr(agent, "act", None)):
        raise ConfigError(
            f"agent={shorten(repr(agent))} must be an Agent; make one, as by "
            "ppo.make(ppo.Config(), obs_space, action_space)"
        )
    for field, space in (("obs_space", obs_space), ("action_space", action_space)):
        made_for = getattr(agent.static, field, None)
        if made_for is not None and _sizes(made_for) != _sizes(space):
            raise ConfigError(
                f"{field} of the agent is {made_for!r:.120}, and that of the environment {space!r:.120}; "
                "make the agent for this environment"
            )


def check_observations(env: Env, params: Any, obs: PyTree) -> None:
    """Raise ConfigError where observations [N, ...] have another structure or shape than their space."""
    expected = jax.tree.map(lambda leaf: leaf.shape, leaf_spaces(env.observation_space(params)))
    got = jax.tree.map(lambda x: x.shape[1:], obs)
    if expected != got:
        raise ConfigError(
            f"env={_name(env)!r}: observations have shapes {got}, and those of their space are {expected}"
        )


def _name(env: Any) -> str:
    return str(getattr(env, "name", type(env).__name__))


def _sizes(space: Space) -> PyTree:
    """Shapes of a space's leaves, and the numbers of choices."""
    return jax.tree.map(lambda x: (x.shape, getattr(x, "n", None), getattr(x, "nvec", None)), leaf_spaces(space))


def reset(env: Env, params: Any, keys: Key) -> tuple[PyTree, PyTree]:
    """Start the first episodes of N streams.

    Args:
      env, params: as for `training.make`.
      keys: [N]; a world has the one of its first player.

    Returns:
      Observations, leaves [N, ...], and states of the worlds, leaves [N / P, ...].
    """
    players = num_players(env)
    obs, state = jax.vmap(env.reset, (0, None))(keys[::players], params)
    return (obs if players == 1 else _fold(obs)), state


def step(env: Env, params: Any, keys: Key, state: PyTree, action: PyTree) -> Step:
    """Take one step of N streams.

    Args:
      env, params: as for `training.make`.
      keys: [N]; a world has the one of its first player.
      state: of the worlds, leaves [N / P, ...].
      action: of the players, leaves [N, ...].

    Returns:
      obs, state, reward, terminated, truncated, info, as of `Env.step`: `state` has leaves [N / P, ...], and all
      others [N, ...].
    """
    players, step = num_players(env), jax.vmap(env.step, (0, 0, 0, None))
    if players == 1:
        return _checked(env, step(keys, state, action, params), keys.shape)
    action = jax.tree.map(lambda x: x.reshape(x.shape[0] // players, players, *x.shape[1:]), action)
    keys = keys[::players]
    obs, state, *rest = _checked(env, step(keys, state, action, params), (*keys.shape, players))
    reward, terminated, truncated, info = _fold(rest)
    return _fold(obs), state, reward, terminated, truncated, info


def _checked(env: Env, returned: Any, shape: tuple[int, ...]) -> Step:
    """Return what a step of all worlds returned. Raises ConfigError where it is not what `Env.step` returns."""
    name, advice = _name(env), "; envs.check finds such mistakes"
    if not isinstance(returned, tuple) or len(returned) != 6:
        got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        raise ConfigError(
            f"env={name!r}: step must return obs, state, reward, terminated, truncated, info, not {got}{advice}"
        )
    for field, value in zip(("reward", "terminated", "truncated"), returned[2:5], strict=True):
        if np.shape(value) != shape:
            raise ConfigError(
                f"env={name!r}: {field} of a step must have the shape {list(shape[1:])}, and it has "
                f"{list(np.shape(value)[1:])}{advice}"
            )
    if not isinstance(returned[5], dict) or "final_observation" not in returned[5]:
        raise ConfigError(f"env={name!r}: info must have final_observation, the observation before a reset{advice}")
    return returned


def _fold(tree: PyTree) -> PyTree:
    """Leaves [N / P, P, ...] as [N, ...]."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)

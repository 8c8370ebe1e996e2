"""Worlds of one or several players, stepped as streams: the axis of players is folded here, and nowhere else.

A world of P players is one environment, one key and one state. Its players are P streams of a rollout, one after the
other, so that N streams are N / P worlds: stream `w * P + p` is player p of world w. With P = 1, streams are worlds.
"""

from typing import Any

import jax

from rlkit.types import Array, ConfigError, Env, Key, PyTree, num_players

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
        return step(keys, state, action, params)
    action = jax.tree.map(lambda x: x.reshape(x.shape[0] // players, players, *x.shape[1:]), action)
    obs, state, *rest = step(keys[::players], state, action, params)
    reward, terminated, truncated, info = _fold(rest)
    return _fold(obs), state, reward, terminated, truncated, info


def _fold(tree: PyTree) -> PyTree:
    """Leaves [N / P, P, ...] as [N, ...]."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), tree)

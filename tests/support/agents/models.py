"""Rules of games for tests of every agent: those of an environment, and some for any observations."""

import inspect

import jax
import jax.numpy as jnp

from rlkit.spaces import shape_of
from rlkit.types import Model


def model_of(module, obs_space, env=None, params=()):
    """The argument `model` of an agent's make, as a dict: of an environment that has one, or else of no game at all.

    It is empty where the agent takes none. In the game of none, every step leads to zeros, without a reward.
    """
    if "model" not in inspect.signature(module.make).parameters:
        return {}
    if hasattr(env, "game_model"):
        return {"model": env.game_model(params)}

    def step(key, state, action):
        obs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape_of(obs_space))
        return state, obs, jnp.zeros(()), jnp.ones(())

    return {"model": Model(lambda obs: jnp.zeros(()), lambda obs: jnp.zeros((), jnp.int32), step)}

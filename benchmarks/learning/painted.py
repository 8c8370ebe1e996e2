"""Pendulum from pictures, for run.py: a small task on which to see what `random_shift` does."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rlkit import envs
from rlkit.envs.wrappers import Wrapper
from rlkit.spaces import Box
from rlkit.types import Array, Key, PyTree

SIDE = 24


class Pendulum(Wrapper):
    """gymnax's Pendulum-v1 whose observation is a gray picture [24, 24, 1] uint8 of the rod, without its velocity."""

    def __init__(self):
        env, self.default_params = envs.make("Pendulum-v1")
        super().__init__(env)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        obs, state = self.env.reset(key, params)
        return _paint(obs), state

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Any:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = info | {"final_observation": _paint(info["final_observation"])}
        return _paint(obs), state, reward, terminated, truncated, info

    def observation_space(self, params: Any) -> Box:
        return Box(0, 255, (SIDE, SIDE, 1), np.uint8)


def _paint(obs: Array) -> Array:
    """Draw a rod of 9 pixels from the center, and 3 wide, whose edges are smooth."""
    x, y = obs[1], -obs[0]  # of the rod's end, to the right and down
    down, right = jnp.meshgrid(*(jnp.arange(SIDE) - (SIDE - 1) / 2,) * 2, indexing="ij")
    along = jnp.clip(right * x + down * y, 0, 9)
    distance = jnp.hypot(right - along * x, down - along * y)
    return jnp.round(255 * jnp.clip(2 - distance, 0, 1))[..., None].astype(jnp.uint8)

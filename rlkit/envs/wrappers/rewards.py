"""Wrappers that change rewards for learning; scores are of the environment's own, which they keep in `info`."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from rlkit.envs.wrappers.base import Step, Wrapper
from rlkit.names import OWN_REWARD
from rlkit.types import Array, ConfigError, Key


class _RewardWrapper(Wrapper):
    """Applies the function `_change` to every reward."""

    def _change(self, reward: Array) -> Array:
        raise NotImplementedError

    def step(self, key: Key, state: Any, action: Any, params: Any) -> Step:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, self._change(reward), terminated, truncated, {OWN_REWARD: reward, **info}


@dataclass(frozen=True)
class ScaleReward(_RewardWrapper):
    """Multiplies rewards by a factor, for learning: scores are of the unchanged rewards."""

    factor: float

    def __post_init__(self):
        if not math.isfinite(self.factor):
            raise ConfigError(f"wrapper scale_reward: factor={self.factor} must be a finite number; try 0.1")

    def _change(self, reward: Array) -> Array:
        return reward * self.factor


@dataclass(frozen=True)
class ClipReward(_RewardWrapper):
    """Clips rewards to [low, high], for learning: scores are of the unchanged rewards. NaN stays NaN."""

    low: float
    high: float

    def __post_init__(self):
        if not -math.inf < self.low <= self.high < math.inf:
            rule = "must be finite numbers in this order; try -1,1"
            raise ConfigError(f"wrapper clip_reward: low={self.low} and high={self.high} {rule}")

    def _change(self, reward: Array) -> Array:
        return jnp.clip(reward, self.low, self.high)

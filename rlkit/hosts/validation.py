"""Checks of the values that a pool's environments return, before training: within bounds, and finite.

Structures, shapes and dtypes are checked in every step anyway.
"""

from typing import Any

import numpy as np

from rlkit.envs.checks import check_bounds
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import ConfigError, PyTree

_STEPS = 16


def check(pool: Any, seed: int) -> None:
    """Take 16 random steps in every environment of a pool and check the values. Reset the pool afterwards.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, the expected value and the actual one.
    """
    rng = np.random.default_rng(seed)
    name, space = pool.name, pool.observation_space
    check_bounds(name, "obs of reset", space, pool.reset(seed))
    for _ in range(_STEPS):
        step = pool.step(sample(pool.action_space, rng, pool.num_envs))
        check_bounds(name, "obs of step", space, step.next_obs)
        check_bounds(name, "obs of reset", space, step.obs)
        if not np.isfinite(step.reward).all():
            env = int(np.argmin(np.isfinite(step.reward)))
            raise ConfigError(
                f"env={name!r}: reward of environment {env}: expected finite numbers, got {step.reward[env]}"
            )


def sample(space: Space, rng: np.random.Generator, num_envs: int) -> PyTree:
    """Draw random values [num_envs, ...] of a space, as NumPy arrays."""
    match space:
        case Dict():
            return {name: sample(child, rng, num_envs) for name, child in space.spaces.items()}
        case Tuple():
            return tuple(sample(child, rng, num_envs) for child in space.spaces)
        case Discrete():
            return rng.integers(0, space.n, num_envs, space.dtype)
        case MultiDiscrete():
            return rng.integers(0, np.asarray(space.nvec), (num_envs, len(space.nvec))).astype(space.dtype)
    assert isinstance(space, Box)
    shape = (num_envs, *space.shape)
    if not space.bounded:
        return rng.standard_normal(shape).clip(space.low, space.high).astype(space.dtype)
    if space.dtype.kind in "iub":
        return rng.integers(space.low.astype(np.int64), space.high.astype(np.int64) + 1, shape).astype(space.dtype)
    return rng.uniform(space.low, space.high, shape).astype(space.dtype)

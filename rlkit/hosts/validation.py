"""Checks of the values that a pool's environments return, before training: within bounds, and finite.

Structures, shapes and dtypes are checked in every step anyway.
"""

from typing import Any

import jax
import numpy as np

from rlkit.envs.checks import check_bounds
from rlkit.names import ACTION_MASK
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import ConfigError, PyTree

_STEPS = 16


def check(pool: Any, seed: int) -> None:
    """Take 16 random steps, of legal actions, in every environment of a pool, and check the values.

    The pool has to be reset afterwards.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, the expected value and the actual one.
    """
    rng = np.random.default_rng(seed)
    obs = pool.reset(seed)
    _check_obs(pool, "obs of reset", obs)
    for _ in range(_STEPS):
        step = pool.step(sample_legal(pool, obs, rng))
        obs = step.obs
        _check_obs(pool, "obs of step", step.next_obs)
        _check_obs(pool, "obs of reset", step.obs)
        if not np.isfinite(step.reward).all():
            env = int(np.argmin(np.isfinite(step.reward)))
            raise ConfigError(
                f"env={pool.name!r}: reward of {pool.locate(env)}: expected finite numbers, got {step.reward[env]}"
            )


def _check_obs(pool: Any, field: str, obs: PyTree) -> None:
    """Check observations [N, ...] against their space. Raises ConfigError, which names environment, worker and seed."""
    name, space = pool.name, pool.observation_space
    try:
        check_bounds(name, field, space, obs)
    except ConfigError:
        for env in range(pool.num_envs):
            try:
                check_bounds(name, field, space, jax.tree.map(lambda x, env=env: x[env : env + 1], obs))
            except ConfigError as error:
                raise ConfigError(f"{error}, in {pool.locate(env)}") from None
        raise


def sample_legal(pool: Any, obs: PyTree, rng: np.random.Generator) -> PyTree:
    """Draw actions [N, ...] that are legal by the mask of observations [N, ...], where they have one.

    Where a mask permits no action, all are drawn, as agents draw them.

    Raises:
      ConfigError: the mask does not fit the action space.
    """
    space = pool.action_space
    if not (isinstance(obs, dict) and ACTION_MASK in obs and isinstance(space, Discrete | MultiDiscrete)):
        return sample(space, rng, pool.num_envs)
    nvec = (space.n,) if isinstance(space, Discrete) else space.nvec
    mask = np.asarray(obs[ACTION_MASK]).astype(bool)
    if mask.shape != (pool.num_envs, sum(nvec)):
        raise ConfigError(
            f"env={pool.name!r}: obs[{ACTION_MASK!r}]: expected one entry for each action, {[sum(nvec)]}, "
            f"got {list(mask.shape[1:])}"
        )
    parts = np.split(mask, np.cumsum(nvec)[:-1], axis=1)
    # The largest of independent random numbers is any legal action with the same probability.
    actions = [np.argmax(rng.random(part.shape) + part, axis=1) for part in parts]
    return (actions[0] if isinstance(space, Discrete) else np.stack(actions, axis=1)).astype(space.dtype)


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

"""Checks of the values that a pool's environments return, before training: in bounds, finite, and kept by float32.

Structures, shapes and dtypes are checked in every step anyway.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from rlkit.envs.checks import check_bounds, check_mask, legal_action
from rlkit.hosts import precision
from rlkit.hosts.worker import contract
from rlkit.names import ACTION_MASK
from rlkit.spaces import Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Key, PyTree

_STEPS = 16
_ROUNDED_SHARE = 0.1  # a rounding step of float32 in standard deviations of so few steps; 1% in a whole dataset


def check(pool: Any, seed: int) -> str | None:
    """Take 16 random steps, of legal actions, in every environment of a pool, and check the values.

    The pool has to be reset afterwards.

    Returns:
      A line on a mask of actions that the environments have and that is not used; None where there is none.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, the expected value and the actual one.
    """
    pool.inspect(True)
    try:
        _check_steps(pool, seed)
        source, space = pool.mask_source(), pool.observation_space
    finally:
        pool.inspect(False)
    is_used = isinstance(space, Dict) and ACTION_MASK in space.spaces
    if source is None or is_used or not isinstance(pool.action_space, Discrete | MultiDiscrete):
        return None
    place = "info['action_mask']" if source == "info" else "a method action_masks()"
    return f"env={pool.name!r} has {place}, which is not used; for legal actions add the wrapper action_mask:{source}"


def _check_steps(pool: Any, seed: int) -> None:
    """Take the steps of `check` in a pool that keeps the observations of float64."""
    sampler, key = make_sampler(pool), jax.random.key(seed)
    obs = pool.reset(seed)
    rounded = [_rounded(pool, obs)]
    _check_obs(pool, "obs of reset", obs)
    check_mask(pool.name, "obs of reset", pool.action_space, obs, pool.locate)
    for number in range(_STEPS):
        step = pool.step(jax.tree.map(np.asarray, sampler(jax.random.fold_in(key, number), obs)))
        obs = step.obs
        rounded.append(_rounded(pool, obs))
        _check_obs(pool, "obs of step", step.next_obs)
        _check_obs(pool, "obs of reset", step.obs)
        check_mask(pool.name, f"obs of step {number + 1}", pool.action_space, obs, pool.locate)
        if not np.isfinite(step.reward).all():
            env = int(np.argmin(np.isfinite(step.reward)))
            raise ConfigError(
                f"env={pool.name!r}: reward of {pool.locate(env)}: expected finite numbers, got {step.reward[env]}"
            )
    for name in rounded[0]:
        values = np.concatenate([leaves[name] for leaves in rounded])
        precision.check(f"env={pool.name!r}: obs{name}", values, share=_ROUNDED_SHARE)


def _rounded(pool: Any, obs: PyTree) -> dict[str, np.ndarray]:
    """The leaves of the newest observations that float32 rounds, [N, ...], as the environment has them, by path."""
    integers = {
        leaf.path: x
        for leaf, x in zip(contract.leaves(pool.obs_tree), jax.tree.leaves(obs), strict=True)
        if not leaf.discrete and x.dtype.kind in "iu" and precision.is_rounded(x.dtype)
    }
    return integers | dict(pool.native_obs())


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


def make_sampler(pool: Any) -> Callable[[Key, PyTree], PyTree]:
    """Return a compiled function (key, obs [N, ...]) -> random actions [N, ...], legal ones where obs has a mask.

    The function raises ConfigError where the mask does not fit the action space.
    """
    draw = jax.vmap(partial(legal_action, pool.name, pool.action_space))
    return jax.jit(lambda key, obs: draw(jax.random.split(key, pool.num_envs), obs))

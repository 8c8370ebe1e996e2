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
from rlkit.hosts.pool import Pool, Step
from rlkit.hosts.worker import contract
from rlkit.names import ACTION_MASK
from rlkit.spaces import Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError, Key, PyTree

_STEPS = 16
_COMPARED = 16  # first observations that must be equal: two states may be so by chance
_ROUNDED_SHARE = 0.1  # a rounding step of float32 in standard deviations of so few steps; 1% in a whole dataset


def check(pool: Any, seed: int, on_step: Callable[[PyTree, Step], None] | None = None) -> list[str]:
    """Take 16 random steps, of legal actions, in every environment of a pool, and check the values.

    The pool has to be reset afterwards. `on_step` is called with the observations that were acted on, and the step.

    Returns:
      Lines on what may be a mistake: environments that share the state of a generator, and a mask of actions that the
      environments have and that is not used.

    Raises:
      ConfigError: at the first violation, naming the environment, the field, the expected value and the actual one.
    """
    pool.inspect(True)
    try:
        obs, hints = _reset(pool, seed)
        _check_steps(pool, seed, obs, on_step)
        source, space = pool.mask_source(), pool.observation_space
    finally:
        pool.inspect(False)
    is_used = isinstance(space, Dict) and ACTION_MASK in space.spaces
    if source is None or is_used or not isinstance(pool.action_space, Discrete | MultiDiscrete):
        return hints
    place = "info['action_mask']" if source == "info" else "a method action_masks()"
    mask = f"env={pool.name!r} has {place}, which is not used; for legal actions add the wrapper action_mask:{source}"
    return [*hints, mask]


def _reset(pool: Any, seed: int) -> tuple[PyTree, list[str]]:
    """Return first observations, and a line where all environments have the same one and ignore their seeds.

    Environments with one state before their first reset have the same observations if nothing in it is seeded: copies
    of one instance with a generator of its own, or a generator with a fixed seed. Then the same seeds give another
    observation at the next reset, which is the same for all environments again. So it is where each counts its resets,
    which may be meant; it is therefore not refused.
    """
    others, starts = pool.num_envs // pool.num_players - 1, []
    while len(starts) < 2 or len(starts) * others < _COMPARED:
        obs = pool.reset(seed)
        leaves = [x[:: pool.num_players] for x in jax.tree.leaves(obs)]  # of the first player of each world
        if others == 0 or not isinstance(pool, Pool) or any((x != x[:1]).any() for x in leaves):
            return obs, []
        starts.append([x[0].copy() for x in leaves])
        if len(starts) == 2 and all(map(np.array_equal, *starts)):
            return obs, []
    text = (
        f"env={pool.name!r}: all {others + 1} environments begin with the same observation, and all with another "
        "one when they are reset with the same seeds again: copies of one state, which ignore seeds; draw from "
        "self.np_random after super().reset(seed=seed), or give a class or a function in place of an instance"
    )
    return obs, [text]


def _check_steps(pool: Any, seed: int, obs: PyTree, on_step: Callable[[PyTree, Step], None] | None) -> None:
    """Take the steps of `check` in a pool that keeps the observations of float64, from its first observations."""
    sampler, key = make_sampler(pool), jax.random.key(seed)
    rounded = [_rounded(pool, obs)]
    _check_obs(pool, "obs of reset", obs)
    check_mask(pool.name, "obs of reset", pool.action_space, obs, pool.locate)
    for number in range(_STEPS):
        step = pool.step(jax.tree.map(np.asarray, sampler(jax.random.fold_in(key, number), obs)))
        before, obs = obs, step.obs
        rounded.append(_rounded(pool, obs))
        _check_obs(pool, "obs of step", step.next_obs)
        _check_obs(pool, "obs of reset", step.obs)
        check_mask(pool.name, f"obs of step {number + 1}", pool.action_space, obs, pool.locate)
        if not np.isfinite(step.reward).all():
            env = int(np.argmin(np.isfinite(step.reward)))
            raise ConfigError(
                f"env={pool.name!r}: reward of {pool.locate(env)}: expected finite numbers, got {step.reward[env]}"
            )
        if on_step is not None:
            on_step(before, step)
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

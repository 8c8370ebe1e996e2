"""Observation normalization and return-based reward scaling, as part of an agent's state.

Both are constant while a rollout is collected and learned from, and are updated with it at the end of the update.
"""

from collections.abc import Iterable
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.networks.features import by_path, replace, to_normalize
from rlkit.ops.statistics import RunningStatistics, normalize, running_init, running_std, running_update
from rlkit.spaces import Space
from rlkit.types import Array, PyTree, Scalar, Transition


class Normalizer(struct.PyTreeNode):
    """Statistics of observations and of discounted returns; () where they are switched off."""

    by_environment: ClassVar = ("running_return",)

    obs: RunningStatistics | tuple  # over leaves of the observation, by the paths of `to_normalize`
    returns: RunningStatistics | tuple  # over the discounted return so far, a scalar
    running_return: Array | tuple  # [N] the discounted return of each environment's episode so far


def init(
    obs_space: Space,
    example: Transition,
    num_envs: int,
    axis_name: str | None = None,
    *,
    obs: bool,
    reward: bool = False,
    image_axes: str = "auto",
) -> Normalizer:
    """Empty statistics, with which normalization changes nothing; `obs` and `reward` switch the two on.

    Images and Discrete observations have none. `num_envs` is the number of environments on all devices of the axis.
    """
    leaves = _select(example.obs, to_normalize(obs_space, image_axes)) if obs else {}
    running_return = jnp.zeros((_mesh.share("num_envs", num_envs, _mesh.size(axis_name)),), jnp.float32)
    return Normalizer(
        obs=running_init(leaves) if leaves else (),
        returns=running_init(jnp.zeros((), jnp.float32)) if reward else (),
        running_return=_mesh.vary(running_return, axis_name) if reward else (),
    )


def normalize_obs(stats: RunningStatistics | tuple, obs: PyTree, clip: float = 10.0) -> PyTree:
    """Observations [...] with zero mean and unit variance in the leaves of `stats`, float, clipped to +-`clip`.

    They may lack the leaf `privileged`, on which policies do not depend.
    """
    if isinstance(stats, tuple):
        return obs
    leaves = _select(obs, stats.mean)
    mean, m2 = ({path: part[path] for path in leaves} for part in (stats.mean, stats.m2))
    return replace(obs, normalize(stats.replace(mean=mean, m2=m2), leaves, clip=clip))


def _select(obs: PyTree, paths: Iterable[str]) -> dict[str, Array]:
    """The leaves of an observation at those of the paths that it has."""
    leaves = by_path(obs)
    return {path: leaves[path] for path in paths if path in leaves}


def scale_reward(normalizer: Normalizer, reward: Array) -> Array:
    """Rewards [T, N] over the deviation of the discounted return (Engstrom et al. 2020, section 3), clipped to +-10."""
    if isinstance(normalizer.returns, tuple):
        return reward
    return jnp.clip(reward / jnp.maximum(running_std(normalizer.returns), 1e-4), -10.0, 10.0)


def update(normalizer: Normalizer, rollout: Transition, gamma: Scalar, axis_name: str | None = None) -> Normalizer:
    """The statistics with a rollout [T, N] added: every observation acted on, and the return after every reward.

    The statistics are of the rollouts of all devices of the axis.
    """
    obs = update_obs(normalizer.obs, rollout.obs, axis_name)
    done = rollout.terminated | rollout.truncated
    return update_returns(normalizer.replace(obs=obs), rollout.reward, done, gamma, axis_name)


def update_obs(
    stats: RunningStatistics | tuple, obs: PyTree, axis_name: str | None = None
) -> RunningStatistics | tuple:
    """The statistics of observations with those of a rollout [T, N, ...] added."""
    return stats if isinstance(stats, tuple) else running_update(stats, _select(obs, stats.mean), axis_name=axis_name)


def update_returns(
    normalizer: Normalizer, reward: Array, done: Array, gamma: Scalar, axis_name: str | None = None
) -> Normalizer:
    """The statistics with the return after every reward [T, N] added; a return begins anew after `done` [T, N] bool."""
    if isinstance(normalizer.returns, tuple):
        return normalizer

    def accumulate(running, step):
        reward, done = step
        running = gamma * running + reward
        return jnp.where(done, 0.0, running), running

    start = vary_like(normalizer.running_return, reward, done, gamma)
    running, returns = jax.lax.scan(accumulate, start, (reward, done))
    statistics = running_update(normalizer.returns, returns, axis_name=axis_name)
    return normalizer.replace(returns=statistics, running_return=running)

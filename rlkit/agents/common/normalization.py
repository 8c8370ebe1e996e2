"""Observation normalization and return-based reward scaling, as part of an agent's state.

Both are constant while a rollout is collected and learned from, and are updated with it at the end of the update.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rlkit import _mesh
from rlkit._mesh import vary_like
from rlkit.networks import views
from rlkit.networks.features import privileged_flags, real_valued, replace_real_valued
from rlkit.ops.statistics import RunningStatistics, normalize, running_init, running_std, running_update
from rlkit.spaces import Space
from rlkit.types import Array, PyTree, Scalar, Transition


class Normalizer(struct.PyTreeNode):
    """Statistics of observations and of discounted returns; () where they are switched off."""

    by_environment: ClassVar = ("running_return",)

    obs: RunningStatistics | tuple  # over the real-valued leaves of the observation
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
) -> Normalizer:
    """Empty statistics, with which normalization changes nothing; `obs` and `reward` switch the two on.

    Observations without a real-valued leaf, such as an image, have none. `num_envs` is the number of environments on
    all devices of the axis.
    """
    leaves = real_valued(obs_space, example.obs) if obs else []
    running_return = jnp.zeros((_mesh.share("num_envs", num_envs, _mesh.size(axis_name)),), jnp.float32)
    return Normalizer(
        obs=running_init(leaves) if leaves else (),
        returns=running_init(jnp.zeros((), jnp.float32)) if reward else (),
        running_return=_mesh.vary(running_return, axis_name) if reward else (),
    )


def normalize_obs(obs_space: Space, stats: RunningStatistics | tuple, obs: PyTree) -> PyTree:
    """Observations [...] with zero mean and unit variance in their real-valued leaves, clipped to +-10.

    They may lack the leaf `privileged`, on which policies do not depend.
    """
    if isinstance(stats, tuple):
        return obs
    if not views.is_complete(obs_space, obs):
        hidden = privileged_flags(obs_space)
        mean, m2 = ([x for x, gone in zip(xs, hidden, strict=True) if not gone] for xs in (stats.mean, stats.m2))
        stats, obs_space = stats.replace(mean=mean, m2=m2), views.actor_space(obs_space)
    return replace_real_valued(obs_space, obs, normalize(stats, real_valued(obs_space, obs), clip=10.0))


def scale_reward(normalizer: Normalizer, reward: Array) -> Array:
    """Rewards [T, N] over the deviation of the discounted return (Engstrom et al. 2020, section 3), clipped to +-10."""
    if isinstance(normalizer.returns, tuple):
        return reward
    return jnp.clip(reward / jnp.maximum(running_std(normalizer.returns), 1e-4), -10.0, 10.0)


def update(
    normalizer: Normalizer, obs_space: Space, rollout: Transition, gamma: Scalar, axis_name: str | None = None
) -> Normalizer:
    """The statistics with a rollout [T, N] added: every observation acted on, and the return after every reward.

    The statistics are of the rollouts of all devices of the axis.
    """
    if not isinstance(normalizer.obs, tuple):
        seen = real_valued(obs_space, rollout.obs)
        normalizer = normalizer.replace(obs=running_update(normalizer.obs, seen, axis_name=axis_name))
    if isinstance(normalizer.returns, tuple):
        return normalizer

    def accumulate(running, step):
        reward, done = step
        running = gamma * running + reward
        return jnp.where(done, 0.0, running), running

    done = rollout.terminated | rollout.truncated
    start = vary_like(normalizer.running_return, rollout.reward, done, gamma)
    running, returns = jax.lax.scan(accumulate, start, (rollout.reward, done))
    statistics = running_update(normalizer.returns, returns, axis_name=axis_name)
    return normalizer.replace(returns=statistics, running_return=running)

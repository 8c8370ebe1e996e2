"""Batches of n-step transitions for one gradient step, and their bootstrapped targets."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlkit.ops.windows import n_step_window
from rlkit.types import Array, PyTree, Sample, Scalar, Transition


class Batch(NamedTuple):
    """A batch of n-step transitions, leaves [B, ...]."""

    obs: PyTree
    action: PyTree
    reward: Array  # [B] the sum of n rewards, discounted
    discount: Array  # [B] factor of the value of next_obs, γ^n; 0 at a terminal state
    next_obs: PyTree
    weight: Array  # [B] importance weight, 0 where nothing was drawn


def n_step_batch(sample: Sample, gamma: Scalar) -> Batch:
    """The n-step transitions of a sample of single steps [B, ...] or of windows [B, L, ...]."""
    item: Transition = sample.item
    if sample.mask.ndim == 1:
        discount = jnp.where(item.terminated, 0.0, gamma)
        weight = jnp.where(sample.mask, sample.weight, 0.0)
        return Batch(item.obs, item.action, item.reward, discount, item.next_obs, weight)
    window = n_step_window(item.reward, item.terminated, sample.mask, gamma=gamma)
    rows = jnp.arange(window.last.shape[0])
    first = jax.tree.map(lambda x: x[:, 0], item)
    next_obs = jax.tree.map(lambda x: x[rows, window.last], item.next_obs)
    weight = jnp.where(sample.mask[:, 0], sample.weight, 0.0)
    return Batch(first.obs, first.action, window.reward, window.discount, next_obs, weight)


def bootstrapped(batch: Batch, next_value: Array) -> Array:
    """The targets [B], reward + discount * next_value; next_value [B] is not read at a terminal state."""
    return batch.reward + jnp.where(batch.discount == 0, 0.0, batch.discount * next_value)

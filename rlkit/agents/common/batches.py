"""Batches of n-step transitions for one gradient step, and their bootstrapped targets."""

from itertools import count
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlkit.networks.features import map_images
from rlkit.ops.images import random_shift
from rlkit.ops.windows import n_step_window
from rlkit.spaces import Space
from rlkit.types import Array, Key, PyTree, Sample, Scalar, Transition


class Batch(NamedTuple):
    """A batch of n-step transitions, leaves [B, ...]."""

    obs: PyTree
    action: PyTree
    reward: Array  # [B] the sum of n rewards, discounted
    discount: Array  # [B] factor of the value of next_obs, γ^n; 0 at a terminal state
    next_obs: PyTree
    weight: Array  # [B] importance weight, 0 where nothing was drawn


def shift_images(sample: Sample, obs_space: Space, pad: int, image_axes: str, key: Key) -> Sample:
    """A sample whose images are moved by `ops.images.random_shift`, each item and each leaf by a shift of its own.

    The observations of an item [B, ...] or [B, L, ...] move together, and so do its next observations, differently.
    """

    def shifted(key: Key, obs: PyTree) -> PyTree:
        number = count()

        def moved(image: Array, axes: tuple[int, int]) -> Array:
            return random_shift(jax.random.fold_in(key, next(number)), image, pad, axes=axes)

        return map_images(moved, obs_space, obs, image_axes)

    item, keys = sample.item, jax.random.split(key, (2, sample.mask.shape[0]))
    obs, next_obs = jax.vmap(shifted)(keys[0], item.obs), jax.vmap(shifted)(keys[1], item.next_obs)
    return sample._replace(item=item._replace(obs=obs, next_obs=next_obs))


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

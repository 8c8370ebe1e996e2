"""Augmentation of images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rlkit.ops._arrays import check_key
from rlkit.types import Array, Key


def random_shift(key: Key, images: ArrayLike, pad: int, *, axes: tuple[int, int] = (-3, -2)) -> Array:
    """Random shift of images, as DrQ has it (Kostrikov et al. 2021, section 3.1), one for all images of the array.

    It is the image padded by `pad` pixels on every side, which repeat its edge, and cropped to its size at a random
    place: pixel (i, j) of the result is pixel (i + dy, j + dx) of the image, or the nearest one where that lies
    outside, with dy and dx uniform in -pad, ..., pad. Use jax.vmap, with a key each, for different shifts.

    Args:
      key: a key.
      images: [..., H, W, C] of any dtype, or others with `axes`.
      pad: the most pixels of a shift, at least 0.
      axes: those of height and width; (-2, -1) for [..., C, H, W].

    Returns:
      Array of the shape and dtype of `images`.

    Raises:
      ValueError: `pad` is negative, an axis does not exist, or `key` is not a key.
    """
    check_key(key)
    images = jnp.asarray(images)
    if pad < 0:
        raise ValueError(f"pad={pad} must be at least 0")
    if not all(-images.ndim <= axis < images.ndim for axis in axes):
        raise ValueError(f"axes={axes} must be axes of images, which have the shape {images.shape}")
    shifts = jax.random.randint(key, (2,), -pad, pad + 1)
    for axis, shift in zip(axes, shifts, strict=True):
        side = images.shape[axis]
        places = jnp.clip(jnp.arange(side, dtype=shift.dtype) + shift, 0, side - 1)
        images = jnp.take(images, places, axis=axis)
    return images

"""rlkit.ops.images against NumPy's padding and cropping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops.images import random_shift


def crops(image, pad):
    """All places of a crop of an image [H, W, C] that is padded with its edge, in rows of places."""
    padded = np.pad(image, [(pad, pad), (pad, pad), (0, 0)], mode="edge")
    height, width, _ = image.shape
    places = range(2 * pad + 1)
    return np.stack([padded[y : y + height, x : x + width] for y in places for x in places])


def test_every_crop_of_the_padded_image_is_drawn_and_alike_often():
    image = np.random.default_rng(0).integers(0, 255, (5, 7, 2), dtype=np.uint8)
    keys = jax.random.split(jax.random.key(0), 4500)
    shifted = np.asarray(jax.jit(jax.vmap(lambda key: random_shift(key, image, 1)))(keys))
    assert shifted.dtype == np.uint8
    equal = (shifted[:, None] == crops(image, 1)).all((-3, -2, -1))
    assert equal.sum(1).tolist() == [1] * 4500
    counts = equal.sum(0)  # 500 each, with a standard deviation of 21
    assert counts.min() > 400
    assert counts.max() < 600


def test_images_of_an_array_move_together_with_their_axes_anywhere():
    images = np.random.default_rng(0).normal(size=(3, 9, 8, 2)).astype(np.float32)
    for seed in range(8):
        key = jax.random.key(seed)
        shifted = random_shift(key, images, 4)
        for image, single in zip(images, shifted, strict=True):
            np.testing.assert_array_equal(random_shift(key, image, 4), single)
        first = random_shift(key, np.moveaxis(images, -1, -3), 4, axes=(-2, -1))
        np.testing.assert_array_equal(jnp.moveaxis(first, -3, -1), shifted)


def test_no_pixels_of_padding_change_nothing():
    image = np.arange(24, dtype=np.int32).reshape(2, 4, 3)
    np.testing.assert_array_equal(random_shift(jax.random.key(1), image, 0), image)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros((4, 4, 1)), -1), "pad=-1 must be at least 0"),
        ((np.zeros((4, 4)), 1), "must be axes of images, which have the shape"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        random_shift(jax.random.key(0), *arguments)

"""Values drawn from spaces."""

import jax
import numpy as np
import pytest

from rlkit.spaces import Box


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-3, 5, np.int32),
        (-128, 127, np.int8),
        (0, 2**31 - 1, np.int32),
        (-(2**31), 2**31 - 1, np.int32),
        (0, 2**32 - 1, np.uint32),
        (-2.0, 3.0, np.float32),
        (-3e38, 3e38, np.float32),
        (-6e4, 6e4, np.float16),
    ],
)
def test_values_of_a_box_are_spread_between_its_bounds(low, high, dtype):
    values = jax.vmap(Box(low, high, (2,), dtype).sample)(jax.random.split(jax.random.key(0), 4000))
    assert values.dtype == dtype
    share = (np.float64(values) - low) / (float(high) - low)
    assert 0 <= share.min() < 0.01
    assert 0.99 < share.max() <= 1
    assert abs(share.mean() - 0.5) < 0.02


def test_values_of_a_box_without_some_bounds_follow_each_dimension():
    """As Gymnasium draws them: exponential from one bound, uniform between two, normal without bounds."""
    space = Box(np.float32([5, -np.inf, 0, -np.inf]), np.float32([np.inf, -2, 1000, np.inf]))
    values = jax.vmap(space.sample)(jax.random.split(jax.random.key(0), 20_000))
    assert jax.vmap(space.contains)(values).all()
    distances = np.float64(values) * [1, -1, 1, 1] - [5, 2, 0, 0]
    np.testing.assert_allclose(distances.mean(0), [1, 1, 500, 0], rtol=0.03, atol=0.03)
    np.testing.assert_allclose(distances.std(0), [1, 1, 1000 / 12**0.5, 1], rtol=0.03)
    assert (distances[:, :2] > 0).all()
    assert abs(np.corrcoef(distances.T) - np.eye(4)).max() < 0.03


def test_a_box_without_bounds_draws_as_before():
    key = jax.random.key(1)
    np.testing.assert_array_equal(Box(-np.inf, np.inf, (3,)).sample(key), jax.random.normal(key, (3,)))
    np.testing.assert_array_equal(Box(-2, 3, (3,)).sample(key), jax.random.uniform(key, (3,), minval=-2, maxval=3))

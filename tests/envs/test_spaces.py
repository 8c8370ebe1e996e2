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

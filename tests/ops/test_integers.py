"""rlkit.ops._integers: modular sums without overflow, and integers without bias."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops import _integers

uniform_below = jax.jit(_integers.uniform_below, static_argnums=1)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 92, 2**16 + 1, 3 * 2**30, 2**32 - 1])
def test_uniform_below_is_the_integer_part_of_n_times_a_64_bit_fraction(n):
    key = jax.random.key(n % 1000)
    high, low = np.asarray(jax.random.bits(key, (2, 1000), jnp.uint32)).astype(object)
    drawn = uniform_below(jax.random.clone(key), (1000,), jnp.uint32(n))
    np.testing.assert_array_equal(np.asarray(drawn), ((high * 2**32 + low) * n // 2**64).astype(np.uint32))


@pytest.mark.parametrize("n", [1, 2, 7, 2**31, 2**32 - 2])
def test_modular_sums_do_not_overflow(n):
    rng = np.random.default_rng(0)
    a = np.array([0, n - 1, n // 2, *rng.integers(0, n, 100)])
    b = np.array([n, n, (n + 1) // 2, *rng.integers(0, n + 1, 100)])
    a32, b32 = (jnp.asarray(x, jnp.uint32) for x in (a, b))
    np.testing.assert_array_equal(_integers.add_mod(a32, b32, n), (a + b) % n)
    np.testing.assert_array_equal(_integers.sub_mod(a32, b32, n), (a - b) % n)

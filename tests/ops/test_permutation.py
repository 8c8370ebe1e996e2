"""rlkit.ops.permutation: bijections for every n, uniformly distributed."""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from scipy.stats import chi2

from rlkit.ops.permutation import _walk, permutations, permute

SIZES = [1, 2, 3, 5, 16, 255, 256, 257, 258, 300, 511, 512, 513, 1000, 4096, 5000]


@pytest.mark.parametrize("n", [1, 5, 257, 512, 1000])
def test_is_a_bijection(n):
    result = jax.jit(lambda k: permute(k, jnp.arange(n), n))(jax.random.key(n))
    assert result.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(result), np.arange(n))


def test_is_a_bijection_where_n_is_traced():
    images = jax.jit(lambda k, n: permute(k, jnp.arange(5000), n))
    for n in SIZES:
        np.testing.assert_array_equal(np.sort(images(jax.random.key(n), n)[:n]), np.arange(n))


@pytest.mark.parametrize("n", [7, 300])
def test_an_image_does_not_depend_on_the_other_elements(n):
    key, whole = jax.random.key(3), permute(jax.random.key(3), jnp.arange(n), n)
    part = jnp.array([[n - 1, 0], [2, n // 2]])
    np.testing.assert_array_equal(permute(key, part, n), whole[part])
    assert permute(key, jnp.int32(2), n) == whole[2]


def test_large_n_stays_in_range():
    for n in (2**31, 2**31 - 1, 10**9 + 7):
        x = permute(jax.random.key(0), jnp.arange(1000), n)
        assert len(np.unique(x)) == 1000
        assert np.all(x >= 0)
        assert np.all(np.asarray(x, np.int64) < n)
        assert np.ptp(np.asarray(x, np.float64)) > 0.9 * n


def test_keys_matter():
    a, b = (permute(jax.random.key(i), jnp.arange(1000), 1000) for i in (0, 1))
    assert np.mean(np.asarray(a) == np.asarray(b)) < 0.02


def test_n_out_of_range_is_named():
    for n in (0, 2**31 + 1):
        with pytest.raises(ValueError, match=f"n={n}"):
            permute(jax.random.key(0), jnp.arange(3), n)


def draws(n, positions, count):
    """Images of some positions under permutations of n with `count` keys, [count, len(positions)]."""
    keys = jax.random.split(jax.random.key(n), count)
    return np.asarray(jax.jit(jax.vmap(lambda k: permute(k, jnp.array(positions), n)))(keys))


def assert_uniform(counts, share=None, alpha=1e-6):
    expected = counts.sum() * (share if share is not None else np.full(counts.size, 1 / counts.size))
    assert expected.min() >= 5
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(alpha, counts.size - 1)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_every_small_permutation_is_as_likely(n):
    codes = draws(n, list(range(n)), 24_000) @ (n ** np.arange(n))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == factorial(n)
    assert_uniform(counts)


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.parametrize(("n", "positions"), [(16, (0, 1)), (16, (3, 12)), (257, (0, 1)), (260, (0, 16))])
def test_single_and_pair_positions_are_uniform(n, positions):
    count = 6 * n * n
    a, b = draws(n, positions, count).T
    assert_uniform(np.bincount(a, minlength=n))
    assert_uniform(np.bincount(b, minlength=n))
    pairs = np.bincount(a * n + b, minlength=n * n).reshape(n, n)
    assert np.all(np.diag(pairs) == 0)
    assert_uniform(pairs[~np.eye(n, dtype=bool)])


@pytest.mark.thorough
@pytest.mark.parametrize("n", [16, 257, 1000])
def test_both_parities_are_as_likely(n):
    def parity(permutation):
        visited, odd = np.zeros(n, bool), 0
        for i in range(n):
            length = 0
            while not visited[i]:
                visited[i], i, length = True, permutation[i], length + 1
            odd ^= (length - 1) & 1 if length else 0
        return odd

    odd = sum(parity(p) for p in draws(n, list(range(n)), 400))
    assert 140 < odd < 260  # 6 sigma


@pytest.mark.thorough
def test_neighbors_are_scattered():
    for n in (960, 8192):
        steps = np.diff(draws(n, list(range(n)), 200), axis=1) % n
        assert_uniform(np.bincount(steps.reshape(-1) * 64 // n, minlength=64)[1:63])  # all but the steps of 0


@pytest.mark.parametrize("n", [1, 5, 257, 512])
def test_permutations_are_bijections_and_differ(n):
    rows = jax.jit(lambda key: permutations(key, 3, n))(jax.random.key(n))
    assert rows.shape == (3, n)
    assert rows.dtype == jnp.int32
    np.testing.assert_array_equal(np.sort(rows), np.broadcast_to(np.arange(n), (3, n)))
    if n > 5:
        assert all(np.mean(np.asarray(rows[i] == rows[j])) < 0.05 for i, j in [(0, 1), (0, 2), (1, 2)])


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.parametrize("n", [16, *(pytest.param(n, marks=pytest.mark.slow) for n in (257, 272))])
def test_permutations_of_one_key_are_independent(n):
    draw = jax.jit(lambda keys: jax.lax.map(lambda key: permutations(key, 2, n)[:, 3], keys, batch_size=1000))
    a, b = np.asarray(draw(jax.random.split(jax.random.key(n), 100 * n))).T
    assert_uniform(np.bincount((a - b) % n, minlength=n))
    bins = np.bincount(np.arange(n) * 16 // n) / n
    assert_uniform(np.bincount(a * 16 // n * 16 + b * 16 // n, minlength=256), np.outer(bins, bins).ravel())


def test_no_loop_where_n_fills_its_table():
    def loops(n):
        text = jax.jit(lambda words: _walk(words, jnp.arange(n), n)).lower(jnp.zeros(9, jnp.uint32)).as_text("hlo")
        return text.count(" while(")

    assert [loops(n) for n in (512, 8192, 128 * 2048, 300, 8191)] == [0, 0, 0, 1, 1]


def test_a_second_call_outside_of_jit_compiles_nothing():
    key, index = jax.random.key(0), jnp.arange(3)
    calls = [permutations(key, 2, 300), permute(key, index, 300)]
    with compilations() as compiled:
        again = [permutations(key, 2, 300), permute(key, index, 300)]
    assert not compiled
    jax.tree.map(np.testing.assert_array_equal, again, calls)

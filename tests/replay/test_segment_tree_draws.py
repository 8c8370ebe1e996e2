"""rlkit.replay.segment_tree: leaves are found by mass, and drawn in proportion to their values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_tree import build, find, init, read, sample, write
from scipy.stats import chi2

from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import total

pytestmark = pytest.mark.thorough


def test_an_empty_leaf_is_never_drawn():
    """500 leaves of which 100 are filled, refreshed a thousand times and drawn from 1e5 times in all for each seed."""

    @jax.jit
    def rounds(tree, keys):
        def one(tree, key):
            k_index, k_value, k_draw = jax.random.split(key, 3)
            index = jax.random.randint(k_index, (32,), 0, 100)
            tree = write(tree, index, jnp.exp(10 * jax.random.normal(k_value, (32,))))
            drawn = sample(tree, k_draw, 1024)
            return tree, (drawn.max(), read(tree, drawn).min())

        return jax.lax.scan(one, tree, keys)[1]

    tree = write(init(500, fanout=2), jnp.arange(100), jnp.ones(100))
    largest, least = rounds(tree, jax.random.split(jax.random.key(3), 1000))
    assert largest.max() < 100
    assert least.min() > 0


@pytest.mark.parametrize("capacity", [8, 300])
def test_masses_at_the_edges_find_filled_leaves(capacity):
    filled = np.array([1, 4]) if capacity == 8 else np.array([5, 77, 199])
    weights = np.zeros(capacity, np.float32)
    weights[filled] = np.random.default_rng(2).uniform(0.1, 1, len(filled))
    tree = build(weights, fanout=2)
    all_of_it = np.float32(total(tree))
    masses = np.float32([0, np.nextafter(all_of_it, 0), all_of_it, np.nextafter(all_of_it, np.inf), 1e30, np.inf])
    np.testing.assert_array_equal(find(tree, masses), filled[[0, -1, -1, -1, -1, -1]])
    np.testing.assert_array_equal(find(tree, np.float32([-1, np.nan, -np.inf])), filled[[0, 0, 0]])
    weights = np.where(weights > 0, np.float32([1e-30, 1e30])[np.arange(capacity) % 2], 0)  # sums that swallow values
    masses = np.linspace(0, 3e30, 1000)
    assert set(np.asarray(find(build(weights), masses))) <= set(filled)


@pytest.mark.parametrize("capacity", [1, 1000, 5000])
def test_an_empty_tree_gives_leaf_0(capacity):
    tree = init(capacity)
    assert total(tree) == 0
    assert not sample(tree, jax.random.key(0), 5).any()
    assert not find(tree, jnp.array([0.0, 1.0, jnp.nan])).any()


def histogram(draw, key, capacity, batches, batch_size):
    """Count the draws of each leaf in many batches, [capacity]."""

    @jax.jit
    def run(key):
        def one(counts, key):
            return counts.at[draw(key, batch_size)].add(1), None

        return jax.lax.scan(one, jnp.zeros(capacity, jnp.int32), jax.random.split(key, batches))[0]

    return np.asarray(run(key))


def fits(counts, weights, alpha):
    """Test by chi-square, at level alpha, that counts have given probabilities; no count where one is 0."""
    expected, possible = counts.sum() * weights / weights.sum(), weights > 0
    assert expected[possible].min() > 5
    squares = (counts - expected)[possible] ** 2 / expected[possible]
    return not counts[~possible].any() and squares.sum() < chi2.isf(alpha, possible.sum() - 1)


WEIGHTS = {
    capacity: np.random.default_rng(capacity).integers(0, 20, capacity).astype(np.float32) for capacity in (7, 5000)
}

SAMPLERS = [(c, fanout, way) for c, fanout in ((7, 8), (5000, 2), (5000, 8)) for way in (True, False)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("capacity", "fanout", "stratified"),
    [x if x[1] == 8 else pytest.param(*x, marks=pytest.mark.slow) for x in SAMPLERS],
)
def test_draws_are_in_proportion_to_the_values(capacity, fanout, stratified):
    tree = build(WEIGHTS[capacity], fanout=fanout)
    draw = partial(sample, tree, stratified=stratified)
    counts = histogram(draw, jax.random.key(0), capacity, 500, 2000)
    assert fits(counts, WEIGHTS[capacity], 1e-6 / len(SAMPLERS))


@pytest.mark.thorough
def test_a_biased_sampler_fails_the_chi_square_test():
    weights = WEIGHTS[5000]
    tree = build(weights)

    def neighbor_now_and_then(key, batch_size):
        k_leaf, k_slip = jax.random.split(key)
        leaf = sample(tree, k_leaf, batch_size)
        after = leaf + jax.random.bernoulli(k_slip, 0.05, leaf.shape).astype(jnp.int32)
        return jnp.where((after < 5000) & (read(tree, after) > 0), after, leaf)

    biased = {
        "a power of the values": partial(sample, build(weights**1.1)),
        "neighbors": neighbor_now_and_then,
    }
    for name, draw in biased.items():
        counts = histogram(draw, jax.random.key(0), 5000, 500, 2000)
        assert not fits(counts, weights, 1e-6 / len(SAMPLERS)), name


@pytest.mark.thorough
def test_the_last_filled_leaf_is_drawn_at_its_frequency():
    for capacity in (2, 5, 1000):
        weights = np.zeros(capacity, np.float32)
        weights[0], weights[capacity - 1] = 3.0, 1.0
        counts = histogram(partial(sample, build(weights), stratified=False), jax.random.key(1), capacity, 10, 4000)
        share = counts[-1] / counts.sum()
        assert abs(share - 0.25) < 6 * np.sqrt(0.1875 / 40_000)


def test_strata_are_drawn_from_their_own_part():
    weights = np.random.default_rng(5).exponential(size=3000)
    tree, ends = build(weights), np.cumsum(weights)
    drawn = np.asarray(sample(tree, jax.random.key(0), 100))
    edges = np.linspace(0, ends[-1], 101)
    slack = 1e-5 * ends[-1]
    assert np.all(ends[drawn] > edges[:-1] - slack)
    assert np.all(ends[drawn] - weights[drawn] < edges[1:] + slack)
    together = np.asarray(sample(tree, jax.random.key(0), 100, stratified=False))
    assert np.any(ends[together] < edges[:-1])


@pytest.mark.thorough
def test_every_leaf_of_a_large_tree_can_be_drawn():
    """A float32 number addresses 2^24 leaves: of 2^26 it would draw every fourth."""
    size, count = 2**26, 65_536
    tree = build(jnp.ones(size), ("sum",))
    for stratified in (True, False):
        drawn = np.asarray(sample(tree, jax.random.key(0), count, stratified=stratified))
        assert abs((drawn % 4 == 0).mean() - 0.25) < 0.01
        for bits in (drawn % 256, drawn // 256 % 256, drawn >> 18):
            assert fits(np.bincount(bits, minlength=256), np.ones(256), 1e-7)
    alone = np.asarray(find(tree, jax.random.uniform(jax.random.key(0), (count,)) * total(tree)))
    assert (alone % 4 == 0).mean() > 0.9  # so that the test can fail


def test_sample_with_values_returns_the_values_of_the_leaves():
    tree = build(np.random.default_rng(0).random(5000))
    tree = write(tree, np.arange(100), np.full(100, 3.0), in_maximum=False)
    leaf, value = jax.jit(segment_tree.sample_with_values, static_argnums=2)(tree, jax.random.key(0), 500)
    np.testing.assert_array_equal(leaf, sample(tree, jax.random.key(0), 500))
    np.testing.assert_array_equal(value, read(tree, leaf))

"""Statistics: numbers by hand, NumPy in float64, identities of merging, large means, jit, vmap and grad."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from mistakes import mistake

from rlkit.ops import statistics

KEY = jax.random.key(0)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), a, b)


EXAMPLE = {"image": np.zeros((2, 3), np.uint8), "speed": np.float32(0)}


def batch_of(*shape: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 256, (*shape, 2, 3), np.uint8),
        "speed": rng.normal(5, 2, shape).astype(np.float32),
    }


def test_running_by_hand():
    stats = statistics.running_update(statistics.running_init(np.float32(0)), np.float32([1, 3]))
    assert [float(x) for x in (stats.count, stats.mean, stats.m2)] == [2, 2, 2]
    stats = statistics.running_update(stats, np.float32([[5, 7]]))
    assert [float(x) for x in (stats.count, stats.mean, stats.m2)] == [4, 4, 20]
    np.testing.assert_allclose(statistics.running_std(stats), np.sqrt(5), rtol=1e-6)
    normalized = statistics.normalize(stats, np.float32([4, 9, 1e6, -1e6]))
    np.testing.assert_allclose(normalized, [0, np.sqrt(5), 10, -10], rtol=1e-6)
    assert float(statistics.normalize(stats, np.float32(1e6), clip=jnp.inf)) > 1e5


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4)])
def test_any_number_of_batch_axes(shape: tuple[int, ...]):
    batch = batch_of(*shape)
    stats = statistics.running_update(statistics.running_init(EXAMPLE), batch)
    axes = tuple(range(len(shape)))
    exact = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
    assert float(stats.count) == np.prod(shape)
    close(stats.mean, jax.tree.map(lambda x: x.mean(axes), exact))
    close(statistics.running_std(stats), jax.tree.map(lambda x: x.std(axes), exact), atol=1e-4)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(stats)} == {"float32"}


def test_merging_is_the_same_in_any_order_and_as_all_at_once():
    empty = statistics.running_init(EXAMPLE)
    parts = [batch_of(n, seed=seed) for seed, n in enumerate((1, 10, 10))]
    update, merge = jax.jit(statistics.running_update), jax.jit(statistics.running_merge)
    a, b, c = (update(empty, part) for part in parts)
    whole = update(empty, jax.tree.map(lambda *xs: np.concatenate(xs), *parts))
    for other in (
        merge(merge(a, b), c),
        merge(a, merge(b, c)),
        merge(merge(c, a), b),
        merge(merge(empty, whole), empty),
    ):
        close(other, whole, rtol=1e-4)
    close(merge(empty, empty), empty)


def test_an_empty_batch_changes_nothing():
    before = statistics.running_update(statistics.running_init(jnp.zeros(3)), jnp.arange(6.0).reshape(2, 3))
    after = jax.jit(statistics.running_update)(before, jnp.zeros((0, 3)))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert np.isnan(statistics.explained_variance(jnp.zeros(0), jnp.zeros(0)))


def test_normalizing_with_empty_statistics_changes_nothing():
    x = batch_of(3)
    close(statistics.normalize(statistics.running_init(EXAMPLE), x, clip=jnp.inf), jax.tree.map(np.float32, x))
    close(statistics.running_std(statistics.running_init(EXAMPLE)), jax.tree.map(np.ones_like, EXAMPLE))


@pytest.mark.thorough
def test_a_mean_far_from_zero_costs_no_precision():
    """N(1e4, 1), 1e7 samples in batches, float32: the deviation is within 1%, the mean within 0.01."""

    def add(stats, key):
        return statistics.running_update(stats, 1e4 + jax.random.normal(key, (100_000,))), None

    stats = jax.jit(lambda keys: jax.lax.scan(add, statistics.running_init(jnp.zeros(())), keys)[0])(
        jax.random.split(KEY, 100)
    )
    assert float(stats.count) == 1e7
    np.testing.assert_allclose(statistics.running_std(stats), 1.0, rtol=0.01)
    np.testing.assert_allclose(stats.mean, 1e4, atol=0.01)


def test_a_constant_has_deviation_zero_and_normalizes_to_zero():
    stats = statistics.running_init(jnp.zeros(2))
    for _ in range(3):
        stats = statistics.running_update(stats, jnp.full((1000, 2), 12345.678))
    np.testing.assert_array_equal(statistics.running_std(stats), [0, 0])
    np.testing.assert_array_equal(statistics.normalize(stats, jnp.full((5, 2), 12345.678)), np.zeros((5, 2)))
    far = statistics.normalize(stats, stats.mean + 1, clip=jnp.inf, epsilon=1e-4)
    np.testing.assert_allclose(far, [100, 100], rtol=1e-6)  # epsilon is in units of the variance


def test_float64_stays_and_lower_floats_go_up():
    with jax.enable_x64(True):
        data = 1e8 + normal(1000)
        stats = statistics.running_update(statistics.running_init(np.float64(0)), data)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(stats)} == {"float64"}
        np.testing.assert_allclose(statistics.running_std(stats), data.std(), rtol=1e-7)
        assert statistics.running_init(jnp.bfloat16(0)).mean.dtype == np.float32


def test_normalizing_under_vmap_jit_and_scan_is_the_same():
    stats = statistics.running_update(statistics.running_init(EXAMPLE), batch_of(50))
    x = batch_of(4)
    whole = statistics.normalize(stats, x)
    close(jax.jit(jax.vmap(statistics.normalize, (None, 0)))(stats, x), whole)
    assert jax.tree.map(np.shape, whole) == jax.tree.map(np.shape, x)
    # Statistics of several seeds are one vmap.
    seeds = [batch_of(8, seed=i) for i in range(3)]
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *seeds)
    update = jax.jit(partial(statistics.running_update, statistics.running_init(EXAMPLE)))
    mapped = jax.jit(jax.vmap(update))(stacked)
    for i, batch in enumerate(seeds):
        row = jax.tree.map(lambda x, i=i: x[i], mapped)
        close(row, update(batch), rtol=1e-4)


def test_wrong_shapes_are_errors():
    stats = statistics.running_init({"a": np.zeros(3, np.float32), "b": np.float32(0)})
    good = {"a": np.zeros((4, 3), np.float32), "b": np.zeros(4, np.float32)}
    for part, function, *arguments in (
        ("shape (4, 2)", statistics.running_update, stats, good | {"a": np.zeros((4, 2), np.float32)}),
        ("[(4,), (4, 1)]", statistics.running_update, stats, good | {"b": np.zeros((4, 1), np.float32)}),
        ("shape ()", statistics.normalize, stats, good | {"a": np.float32(0)}),
        ("target has shape (4, 1)", statistics.explained_variance, good["b"], np.zeros((4, 1), np.float32)),
        ("scores has shape (0, 2)", statistics.iqm_interval, np.zeros((0, 2), np.float32), KEY),
        ("confidence=95", partial(statistics.iqm_interval, confidence=95), np.zeros((2, 2), np.float32), KEY),
    ):
        with mistake(part, kind=ValueError):
            function(*arguments)


def test_explained_variance_by_hand():
    target = jnp.float32([1, 2, 3, 4])
    ev = partial(statistics.explained_variance, target=target)
    np.testing.assert_allclose([ev(target), ev(target + 7), ev(0 * target), ev(-target)], [1, 1, 0, -3], atol=1e-6)
    assert bool(jnp.isnan(statistics.explained_variance(target, jnp.full(4, 0.1))))
    # No digits are lost to a large constant, and a constant is one also where its mean rounds.
    np.testing.assert_allclose(statistics.explained_variance(target + 1e4, target + 1e4), 1.0)
    assert bool(jnp.isnan(statistics.explained_variance(jnp.zeros(1000), jnp.full(1000, 12345.678))))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0, 0, 0, 100], 0.0),
        ([100, 0, 0, 0], 0.0),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        ([1, 2, 3, 4, 50], 3.0),  # floor(5 / 4) = 1 on each side
        ([7.0], 7.0),
        ([], np.nan),
        ([[0, 0], [0, 100]], 0.0),
    ],
)
def test_iqm_by_hand(scores, expected):
    np.testing.assert_allclose(statistics.iqm(jnp.float32(scores)), expected)


def test_iqm_is_a_trimmed_mean_that_does_not_hide_nan():
    scores = normal(23, 3)
    ordered = np.sort(scores.ravel())
    with jax.enable_x64(True):
        np.testing.assert_allclose(statistics.iqm(scores), ordered[17:-17].mean(), rtol=1e-12)
        assert np.isnan(statistics.iqm(np.array([1.0, np.nan, 2.0, 3.0])))


def test_the_bootstrap_is_stratified():
    """Runs are resampled within each of two tasks far apart, so that the mean of a table hardly varies."""
    scores = jnp.float32(np.stack([normal(10), 1000 + normal(10, seed=1)], axis=1))
    means = jax.jit(lambda x: statistics.stratified_bootstrap(x, KEY, jnp.mean, resamples=500))(scores)
    assert means.shape == (500,)
    expected = np.sqrt(np.sum(np.asarray(scores).var(0)) / 10 / 4)  # of the mean of two task means
    np.testing.assert_allclose(means.std(), expected, rtol=0.15)
    np.testing.assert_allclose(means.mean(), scores.mean(), atol=5 * expected / np.sqrt(500))
    # The runs of the two tasks are drawn apart: their means are uncorrelated.
    product = lambda x: statistics.stratified_bootstrap(x, KEY, lambda t: t.mean(0).prod(), resamples=2000)  # noqa: E731
    tasks = jax.jit(product)(np.asarray(scores) - np.asarray(scores).mean(0, keepdims=True))
    assert abs(float(tasks.mean())) < 5 * float(tasks.std()) / np.sqrt(2000)


@pytest.mark.thorough
def test_the_interval_covers_its_confidence():
    """200 data sets of 30 normal runs: a 95% interval holds the true IQM, 0, in about 95%."""
    data = jnp.float32(normal(200, 30))
    interval = partial(statistics.iqm_interval, resamples=300)
    low, high = jax.jit(jax.vmap(interval))(data, jax.random.split(KEY, 200))
    assert bool(jnp.all(low <= high))
    assert 0.85 <= float(jnp.mean((low <= 0) & (high >= 0))) <= 0.99
    narrow = jax.jit(jax.vmap(partial(interval, confidence=0.5)))(data, jax.random.split(KEY, 200))
    assert 0.40 <= float(jnp.mean((narrow[0] <= 0) & (narrow[1] >= 0))) <= 0.60
    same = [statistics.iqm_interval(data[0], key, resamples=50) for key in (KEY, KEY, jax.random.key(1))]
    assert same[0] == same[1] != same[2]
    close(statistics.iqm_interval(jnp.float32([0, 0, 0, 0]), KEY, resamples=50), (0.0, 0.0))


def test_gradients():
    with jax.enable_x64(True):
        stats = statistics.running_update(statistics.running_init(np.zeros(2)), 3 + 2 * normal(9, 2))
        more, x = jnp.asarray(normal(5, 2, seed=1)), jnp.asarray(normal(4, 2, seed=2))
        check = partial(check_grads, order=1, rtol=1e-6, atol=1e-6, eps=1e-6)

        def normalized(more, x):
            return statistics.normalize(statistics.running_update(stats, more), x)

        check(jax.jit(normalized), (more, x))
        check(jax.jit(statistics.explained_variance), (more, 2 + more**2))
        check(jax.jit(statistics.iqm), (more,))


@pytest.mark.parametrize("order", [0, 1])
def test_the_variance_stays_beyond_the_integers_of_float32(order):
    """One row at a time: 2^24 + 1 is no float32, and rows that are not counted must not be summed either."""
    many = statistics.RunningStatistics(jnp.float32(2**24 - 5), jnp.float32(1), jnp.float32(2**24 - 5))

    def update(stats, x):
        row = statistics.running_update(statistics.running_init(np.float32(0)), x[None])
        return statistics.running_merge(*((stats, row) if order == 0 else (row, stats))), None

    rows = jnp.asarray(1 + 30 * normal(100_000), jnp.float32)
    stats, _ = jax.jit(lambda stats, rows: jax.lax.scan(update, stats, rows))(many, rows)
    assert float(stats.count) == 2**24
    np.testing.assert_allclose(statistics.running_std(stats), 1, rtol=1e-3)


@pytest.mark.parametrize("size", [3, 5])
def test_batches_that_are_counted_in_part_enter_in_part(size):
    """At 2^25 counts go in steps of 4: a batch of 3 or 5 counts as 4."""
    many = statistics.RunningStatistics(jnp.float32(2**25), jnp.float32(0), jnp.float32(2**25))
    batch = jnp.asarray(np.float32([-1, 1, 0, 2, -2][:size]))
    stats = statistics.running_update(many, batch)
    assert float(stats.count) == 2**25 + 4
    exact = np.sum(np.square(np.asarray(batch) - np.mean(batch))) * 4 / size
    np.testing.assert_allclose(float(stats.m2) - 2**25, exact + 4 * np.mean(batch) ** 2, atol=2)


def test_statistics_below_the_limit_are_as_without_it():
    a, b = (statistics.running_update(statistics.running_init(np.float32(0)), normal(n, seed=n)) for n in (1000, 17))
    merged = statistics.running_merge(a, b)
    count = a.count + b.count
    weight = b.count / count
    assert float(merged.count) == float(count)
    assert float(merged.mean) == float(a.mean + (b.mean - a.mean) * weight)
    assert float(merged.m2) == float(a.m2 + b.m2 + (b.mean - a.mean) ** 2 * (a.count * weight))

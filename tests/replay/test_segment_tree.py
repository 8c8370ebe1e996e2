"""rlkit.replay.segment_tree: values by hand, sums that do not drift, runs of leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from compiled_tree import ALL, build, find, init, read, sample, summary, values, write
from jax.experimental import checkify
from tree_invariants import check_tree

from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import minimum, total


@pytest.mark.parametrize(
    ("capacity", "fanout"), [(1, 8), (2, 2), (3, 8), (7, 2), (1000, 8), pytest.param(1000, 2, marks=pytest.mark.slow)]
)
def test_masses_map_to_the_right_leaf(capacity, fanout):
    weights = np.arange(1.0, capacity + 1)  # sums of integers are exact
    tree = build(weights, fanout=fanout)
    check_tree(tree)
    assert summary(tree) == (capacity * (capacity + 1) / 2, 1.0, capacity)
    ends = np.cumsum(weights)
    masses = np.concatenate([ends - weights, ends - 0.5])  # the start of each leaf, and half a unit before its end
    leaf = find(tree, masses)
    assert leaf.dtype == jnp.int32
    np.testing.assert_array_equal(leaf, np.tile(np.arange(capacity), 2))


def test_values_are_read_back_exactly():
    weights = np.random.default_rng(0).exponential(size=1000).astype(np.float32)
    tree = write(init(1000), np.arange(1000), weights)
    np.testing.assert_array_equal(values(tree), weights)
    np.testing.assert_array_equal(read(tree, jnp.array([[3, 999], [0, 3]])), weights[[[3, 999], [0, 3]]])
    np.testing.assert_array_equal(np.isnan(read(tree, jnp.array([-1, 999, 1000, 1001]))), [True, False, True, True])


def test_the_largest_of_duplicates_is_kept_whatever_was_there():
    tree = build(jnp.array([0.0, 1.0, 0.0, 9.0, 0.0]))
    tree = write(tree, jnp.array([3, 3, 3]), jnp.array([1.0, 5.0, 2.0]))
    np.testing.assert_array_equal(values(tree), [0, 1, 0, 5, 0])
    assert summary(tree) == (6.0, 1.0, 5.0)
    tree = write(tree, jnp.array([3, 1, 3]), jnp.array([2.0, 0.0, 0.0]), in_maximum=False)
    np.testing.assert_array_equal(values(tree), [0, 0, 0, 2, 0])
    assert summary(tree) == (2.0, 2.0, 0.0)


def test_the_minimum_is_over_positive_values():
    tree = init(300, fanout=2)
    assert summary(tree) == (0.0, np.inf, 0.0)
    tree = write(tree, jnp.array([7, 200]), jnp.array([3.0, 0.25]))
    assert summary(tree) == (3.25, 0.25, 3.0)
    tree = write(tree, jnp.array([200, 200]), jnp.array([0.0, 0.0]))
    assert summary(tree) == (3.0, 3.0, 3.0)


def test_the_maximum_leaves_out_values_written_without_it():
    tree = write(init(1000), jnp.array([1, 2, 999]), jnp.array([4.0, 100.0, 7.0]), in_maximum=False)
    assert summary(tree) == (111.0, 4.0, 0.0)
    np.testing.assert_array_equal(read(tree, jnp.array([1, 2, 999])), [4, 100, 7])
    tree = write(tree, jnp.array([1, 1, 1]), jnp.array([3.0, 3.0, 3.0]))
    assert summary(tree) == (110.0, 3.0, 3.0)
    tree = write(tree, jnp.array([1, 1, 1]), jnp.array([5.0, 5.0, 5.0]), in_maximum=False)
    assert summary(tree) == (112.0, 5.0, 0.0)
    check_tree(tree)


def test_values_are_sanitized_as_documented():
    unfit = jnp.array([jnp.nan, jnp.inf, -1.0, 0.0, -jnp.inf, 1e38, 2.0**-127, 2.0**-126, 2.0**96, -0.0])
    expected = np.array([0, 2.0**96, 0, 0, 0, 2.0**96, 0, 2.0**-126, 2.0**96, 0], np.float32)
    for tree in (write(init(10), jnp.arange(10), unfit), build(unfit)):
        np.testing.assert_array_equal(values(tree), expected)
        check_tree(tree)
        assert np.isfinite(total(tree))
        assert minimum(tree) == 2.0**-126
        assert set(np.asarray(find(tree, jnp.linspace(0, total(tree), 100)))) <= {1, 5, 7, 8}
    assert np.isfinite(np.float32(2**31) * np.float32(segment_tree.layout.LARGEST))


def test_an_index_out_of_range_is_written_nowhere():
    tree = build(jnp.arange(1.0, 6.0))  # five leaves in an array of eight
    for index in ([5, -1], [7, -5], [8, 100], [2**31 - 1, -(2**31)]):
        after = write(tree, jnp.array(index, jnp.int32), jnp.array([7.0, 9.0]))
        jax.tree.map(np.testing.assert_array_equal, after, tree)
    after = write(tree, jnp.array([5, 2], jnp.int32), jnp.array([7.0, 9.0]))
    np.testing.assert_array_equal(values(after), [1, 2, 9, 4, 5])


@pytest.mark.parametrize(
    "dtype",
    [np.int8, np.uint32, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in (np.uint8, np.int16, np.int32))],
)
def test_every_integer_is_an_index(dtype):
    tree = build(jnp.arange(1.0, 1001.0))
    top = np.iinfo(dtype).max
    index = np.array([3, top, np.iinfo(dtype).min, 100], dtype)
    expected = np.arange(1.0, 1001.0)
    expected[[i for i in index.tolist() if 0 <= i < 1000]] = 5.0
    np.testing.assert_array_equal(values(write(tree, index, np.full(4, 5.0))), expected)


def test_64_bits_do_not_wrap_around():
    with jax.enable_x64(True):
        tree = write(init(10), jnp.array([2**32 + 3, 4, -(2**32)]), jnp.array([1.0, 1e300, 2.0]))
        assert tree.leaves.dtype == tree.nodes[0].dtype == tree.roots.dtype == jnp.float32
        np.testing.assert_array_equal(np.flatnonzero(values(tree)), [4])
        assert find(tree, jnp.array([0.5])).dtype == sample(tree, jax.random.key(0), 2).dtype == jnp.int32


@pytest.mark.parametrize("index", [-1, 5, 8])
def test_checkify_catches_an_index_out_of_range(index):
    tree = build(jnp.arange(1.0, 6.0))
    checked = checkify.checkify(write, errors=checkify.index_checks)
    assert checked(tree, jnp.array([0, 4]), jnp.ones(2))[0].get() is None
    assert "out of bounds" in checked(tree, jnp.array([0, index]), jnp.ones(2))[0].get()
    drawn = checkify.checkify(lambda *args: sample(*args, 8), errors=checkify.index_checks)(tree, jax.random.key(0))
    assert drawn[0].get() is None


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.parametrize("statistics", [ALL, ("max",), ("min", "sum")])
def test_writing_in_any_order_gives_what_one_dense_pass_gives(statistics):
    capacity = 5000
    rng = np.random.default_rng(capacity)
    weights = rng.exponential(size=capacity).astype(np.float32)
    tree = init(capacity, statistics, fanout=4)
    tree = write(tree, rng.integers(0, capacity, 500), rng.exponential(size=500))
    for part in np.array_split(rng.permutation(capacity), 5):
        tree = write(tree, part, weights[part])
    check_tree(tree)
    jax.tree.map(np.testing.assert_array_equal, tree, build(weights, statistics, fanout=4))


@pytest.mark.thorough
@pytest.mark.optimized
def test_the_fan_out_changes_no_bit():
    capacity = 5000
    weights = np.random.default_rng(1).exponential(size=capacity)
    masses = np.linspace(0, weights.sum(), 999)
    expected = build(weights)
    for fanout in (2, 32):
        tree = build(weights, fanout=fanout)
        assert summary(tree) == summary(expected)
        np.testing.assert_array_equal(find(tree, masses), find(expected, masses))


@pytest.mark.parametrize("size", [2**20, 2**20 - 1, 10**6 + 7])
def test_equal_values_sum_without_a_bias(size):
    for value in np.float32([0.1, 1 / 3, 0.7]):
        tree = build(np.full(size, value), ("sum",))
        assert abs(float(total(tree)) / (size * float(value)) - 1) < 1e-6


@pytest.mark.thorough
@pytest.mark.optimized
def test_no_drift_after_many_writes():
    capacity, rows = 5000, 128

    @jax.jit
    def rounds(tree, keys):
        def one(tree, key):
            k_index, k_value = jax.random.split(key)
            index = jax.random.randint(k_index, (rows,), 0, capacity)
            return write(tree, index, jnp.exp(8 * jax.random.normal(k_value, (rows,)))), None

        return jax.lax.scan(one, tree, keys)[0]

    tree = rounds(init(capacity), jax.random.split(jax.random.key(0), 800))  # 1e5 values
    check_tree(tree)
    leaves = np.asarray(values(tree), np.float64)
    np.testing.assert_allclose(total(tree), leaves.sum(), rtol=1e-6)
    assert summary(tree)[1:] == (leaves[leaves > 0].min(), leaves.max())
    tree = write(tree, jnp.arange(capacity), jnp.zeros(capacity))
    assert summary(tree) == (0.0, np.inf, 0.0)


@pytest.mark.parametrize(
    ("capacity", "fanout"),
    [(1, 8), (300, 2), *(pytest.param(*size, marks=pytest.mark.thorough) for size in ((40_000, 8), (140_000, 2)))],
    ids=["one", "narrow", "wide", "levels with arrays of their own"],
)
def test_writing_a_run_equals_writing_its_leaves(capacity, fanout):
    random = np.random.default_rng(0)
    tree = build(random.random(capacity), fanout=fanout)
    for size, in_maximum in ((1, True), (1, False)) if capacity == 1 else ((9, True), (100, False)):
        run = jax.jit(partial(segment_tree.write_run, in_maximum=in_maximum))
        for start in sorted({0, 5, capacity // 2, capacity - size} & set(range(capacity - size + 1))):
            value = random.choice([0.0, 1e-3, 2.0, np.nan, np.inf, 7.0], size).astype(np.float32)
            expected = write(tree, start + np.arange(size), value, in_maximum=in_maximum)
            tree = run(tree, start, value)
            jax.tree.map(np.testing.assert_array_equal, tree, expected)
        check_tree(tree)
        for outside in (-1, capacity - size + 1, 2**31 - 1):
            jax.tree.map(np.testing.assert_array_equal, run(tree, outside, np.ones(size, np.float32)), tree)


def test_nothing_is_differentiated():
    tree, index = build(jnp.arange(4.0)), jnp.array([1, 2])
    for of in (lambda v: total(build(v)), lambda v: total(write(tree, index, v[:2]))):
        np.testing.assert_array_equal(jax.grad(of)(jnp.ones(4)), 0.0)


def test_a_tree_holds_only_the_arrays_of_its_statistics():
    leaves, levels = 8000, 1000 + 128 + 16 + 8 + 1
    sizes = {n: sum(x.size for x in jax.tree.leaves(init(8000, ALL[:n]))) for n in (1, 2, 3)}
    assert sizes == {n: leaves + n * levels for n in (1, 2, 3)}


def test_no_values_to_write_change_nothing():
    tree = build(jnp.ones(5))
    jax.tree.map(np.testing.assert_array_equal, write(tree, jnp.zeros(0, int), jnp.zeros(0)), tree)


def test_an_empty_tree_is_filled_without_indices():
    """XLA evaluates indices that are known when it compiles, which takes it a minute for 2^22 leaves."""
    text = jax.jit(lambda: segment_tree.init(2**22)).lower().as_text()
    assert not [name for name in ("reduce_window", "scatter", "gather") if f"stablehlo.{name}" in text]


def test_a_second_call_outside_of_jit_compiles_nothing():
    def calls():
        tree = segment_tree.write(segment_tree.init(5000), jnp.arange(3), jnp.ones(3))
        tree = segment_tree.write_run(tree, 10, jnp.ones(4))
        return segment_tree.sample(tree, jax.random.key(0), 8), segment_tree.find(tree, 2.5)

    calls()
    with compilations() as compiled:
        calls()
    assert not compiled

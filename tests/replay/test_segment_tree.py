"""rlkit.replay.segment_tree: sums that do not drift, and draws in exact proportion."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from scipy.stats import chi2

from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import check, maximum, minimum, total

ALL = ("sum", "min", "max")
# Functions that are called often are compiled: op by op, each operation costs a compilation of its own.
init = jax.jit(segment_tree.init, static_argnums=(0, 1), static_argnames="fanout")
build = jax.jit(segment_tree.build, static_argnums=1, static_argnames="fanout")
write = jax.jit(segment_tree.write, static_argnames="in_maximum")
values, read, find = jax.jit(segment_tree.values), jax.jit(segment_tree.read), jax.jit(segment_tree.find)
sample = jax.jit(segment_tree.sample, static_argnums=2, static_argnames="stratified")


def summary(tree):
    return float(total(tree)), float(minimum(tree)), float(maximum(tree))


# Values, by hand.


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("fanout", [2, 8])
def test_masses_map_to_the_right_leaf(capacity, fanout):
    weights = np.arange(1.0, capacity + 1)  # sums of integers are exact
    tree = build(weights, fanout=fanout)
    check(tree)
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
    check(tree)


def test_values_are_sanitized_as_documented():
    unfit = jnp.array([jnp.nan, jnp.inf, -1.0, 0.0, -jnp.inf, 1e38, 2.0**-127, 2.0**-126, 2.0**96, -0.0])
    expected = np.array([0, 2.0**96, 0, 0, 0, 2.0**96, 0, 2.0**-126, 2.0**96, 0], np.float32)
    for tree in (write(init(10), jnp.arange(10), unfit), build(unfit)):
        np.testing.assert_array_equal(values(tree), expected)
        check(tree)
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


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int32])
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


# No drift, and the same bits by every path.


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
    check(tree)
    jax.tree.map(np.testing.assert_array_equal, tree, build(weights, statistics, fanout=4))


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
    check(tree)
    leaves = np.asarray(values(tree), np.float64)
    np.testing.assert_allclose(total(tree), leaves.sum(), rtol=1e-6)
    assert summary(tree)[1:] == (leaves[leaves > 0].min(), leaves.max())
    tree = write(tree, jnp.arange(capacity), jnp.zeros(capacity))
    assert summary(tree) == (0.0, np.inf, 0.0)


# Drawing.


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


@pytest.mark.parametrize(("capacity", "fanout", "stratified"), SAMPLERS)
def test_draws_are_in_proportion_to_the_values(capacity, fanout, stratified):
    tree = build(WEIGHTS[capacity], fanout=fanout)
    draw = partial(sample, tree, stratified=stratified)
    counts = histogram(draw, jax.random.key(0), capacity, 500, 2000)
    assert fits(counts, WEIGHTS[capacity], 1e-6 / len(SAMPLERS))


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


@pytest.mark.parametrize(("capacity", "fanout"), [(1, 8), (300, 2), (40_000, 8)], ids=["one", "narrow", "wide"])
def test_writing_a_run_equals_writing_its_leaves(capacity, fanout):
    random = np.random.default_rng(0)
    tree = build(random.random(capacity), fanout=fanout)
    for size in {1, min(9, capacity), min(100, capacity)}:
        for in_maximum in (True, False):
            run = jax.jit(partial(segment_tree.write_run, in_maximum=in_maximum))
            for start in sorted({0, 5, capacity // 2, capacity - size} & set(range(capacity - size + 1))):
                value = random.choice([0.0, 1e-3, 2.0, np.nan, np.inf, 7.0], size).astype(np.float32)
                expected = write(tree, start + np.arange(size), value, in_maximum=in_maximum)
                tree = run(tree, start, value)
                jax.tree.map(np.testing.assert_array_equal, tree, expected)
            for outside in (-1, capacity - size + 1, 2**31 - 1):
                jax.tree.map(np.testing.assert_array_equal, run(tree, outside, np.ones(size, np.float32)), tree)


def test_bad_arguments_of_a_run_are_named():
    tree = segment_tree.init(10)
    assert segment_tree.write_run(tree, 3, jnp.zeros(0)) is tree
    for start, size in ((jnp.zeros(2, jnp.int32), 2), (0, 11)):
        with pytest.raises(ValueError, match="B <= 10"):
            segment_tree.write_run(tree, start, jnp.zeros(size))
    with pytest.raises(ValueError, match="expected integers"):
        segment_tree.write_run(tree, 0.0, jnp.zeros(2))


def test_sample_with_values_returns_the_values_of_the_leaves():
    tree = build(np.random.default_rng(0).random(5000))
    tree = write(tree, np.arange(100), np.full(100, 3.0), in_maximum=False)
    leaf, value = jax.jit(segment_tree.sample_with_values, static_argnums=2)(tree, jax.random.key(0), 500)
    np.testing.assert_array_equal(leaf, sample(tree, jax.random.key(0), 500))
    np.testing.assert_array_equal(value, read(tree, leaf))


# The program.


@pytest.mark.planned
@pytest.mark.parametrize("statistics", [("sum",), ALL])
def test_a_loop_of_writes_and_draws_copies_nothing(statistics):
    """The optimized program of a loop with a donated tree copies no level, and reads none as a whole."""
    capacity, rows = 2**20, 256

    def cycle(tree, inputs):
        key, index, value = inputs
        tree = write(tree, index[:1], value[:1])
        tree = segment_tree.write_run(tree, index[1], value[:3])
        drawn = sample(tree, key, rows)
        return write(tree, drawn, value), total(tree)

    inputs = jax.eval_shape(
        lambda: (jax.random.split(jax.random.key(0), 3), jnp.zeros((3, rows), int), jnp.ones((3, rows)))
    )
    tree = jax.eval_shape(lambda: init(capacity, statistics))
    program = jax.jit(lambda tree, xs: jax.lax.scan(cycle, tree, xs), donate_argnums=0).lower(tree, inputs).compile()
    memory = program.memory_analysis()
    assert memory.alias_size_in_bytes >= sum(leaf.size * 4 for leaf in jax.tree.leaves(tree))
    assert memory.temp_size_in_bytes < 2**18
    text = program.as_text()
    assert large(text, "parameter", 2**14)  # the pattern matches something
    for opcode in ("copy", "select", "sort", "reduce", "add", "broadcast", "concatenate"):
        assert not large(text, opcode, 2**14), opcode


def large(text, opcode, size):
    """List the instructions of a kind in an optimized program whose result has at least so many elements."""
    found = re.findall(rf"= \w+\[([\d,]+)\]\S* {opcode}\(", text)
    return [shape for shape in found if np.prod([int(n) for n in shape.split(",")]) >= size]


@pytest.mark.planned
@pytest.mark.parametrize(("writer", "shape"), [(write, (4, 256)), (segment_tree.write_run, (4,))])
def test_several_trees_by_vmap_select_no_whole_tree(writer, shape):
    capacity, rows = 2**17, 256
    trees = jax.eval_shape(lambda: jax.vmap(lambda _: init(capacity))(jnp.zeros(4)))
    inputs = (jnp.zeros(shape, jnp.int32), jnp.ones((4, rows)))
    program = jax.jit(jax.vmap(writer), donate_argnums=0).lower(trees, *inputs).compile()
    text = program.as_text()
    assert large(text, "parameter", 2**14)
    assert not large(text, "select", 2**14)
    assert program.memory_analysis().temp_size_in_bytes < 2**18


def test_one_compilation_for_a_shape():
    writer, sampler = (
        jax.jit(lambda *args: segment_tree.write(*args)),
        jax.jit(lambda *args: segment_tree.sample(*args, 8)),
    )
    tree = init(1000)
    for i in range(5):
        index = sampler(tree, jax.random.key(i))
        tree = writer(tree, index, jnp.full(8, 1.0 + i))
    assert writer._cache_size() == sampler._cache_size() == 1


def test_the_largest_capacity_compiles():
    """Shapes alone, as 2^31 - 1 leaves are 8 GiB: an int32 that overflows would be an error."""
    tree = jax.eval_shape(lambda: init(2**31 - 1, ("sum",)))
    assert tree.leaves.size == 2**31

    def cycle(tree, key):
        drawn = sample(tree, key, 4)
        return write(tree, drawn, read(tree, drawn) + 1.0), find(tree, jnp.array([1.0]))

    jax.jit(cycle).lower(tree, jax.random.key(0)).compile()


def test_nothing_is_differentiated():
    tree, index = build(jnp.arange(4.0)), jnp.array([1, 2])
    for of in (lambda v: total(build(v)), lambda v: total(write(tree, index, v[:2]))):
        np.testing.assert_array_equal(jax.grad(of)(jnp.ones(4)), 0.0)


# Mistakes.


def test_bad_arguments_are_named():
    for capacity in (0, 2**31):
        with pytest.raises(ValueError, match=f"capacity={capacity} "):
            init(capacity)
    for fanout in (0, 1, 6):
        with pytest.raises(ValueError, match=f"fanout={fanout} "):
            init(10, fanout=fanout)
    for statistics in ((), ("mean",), "sum"):
        with pytest.raises(ValueError, match="statistics="):
            init(10, statistics)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        build(jnp.ones((2, 3)))
    tree = init(10)
    with pytest.raises(ValueError, match=r"value has shape \(2, 1\), expected \(2,\)"):
        write(tree, jnp.array([1, 2]), jnp.ones((2, 1)))
    with pytest.raises(ValueError, match=r"index has shape \(\), expected \[B\]"):
        write(tree, 3, 1.0)
    with pytest.raises(ValueError, match="index has dtype float32"):
        write(tree, jnp.ones(2), jnp.ones(2))
    with pytest.raises(ValueError, match="batch_size=0"):
        sample(tree, jax.random.key(0), 0)


@pytest.mark.parametrize("fn", [total, lambda t: find(t, jnp.ones(1)), lambda t: sample(t, jax.random.key(0), 1)])
def test_a_statistic_that_is_not_kept_is_named(fn):
    with pytest.raises(ValueError, match="'sum'"):
        fn(init(10, ("min", "max")))
    for name, needs in (("min", minimum), ("max", maximum)):
        with pytest.raises(ValueError, match=f"'{name}'"):
            needs(init(10, ("sum",)))


def test_a_tree_holds_only_the_arrays_of_its_statistics():
    leaves, levels = 8000, 1000 + 128 + 16 + 8 + 1
    sizes = {n: sum(x.size for x in jax.tree.leaves(init(8000, ALL[:n]))) for n in (1, 2, 3)}
    assert sizes == {n: leaves + n * levels for n in (1, 2, 3)}


def test_no_values_to_write_change_nothing():
    tree = build(jnp.ones(5))
    jax.tree.map(np.testing.assert_array_equal, write(tree, jnp.zeros(0, int), jnp.zeros(0)), tree)


BROKEN = [("leaves", 17, np.nan), ("leaves", 17, 1e30), ("leaves", 999, 1e-39)]
BROKEN += [(field, 3, value) for field in ("sum", "min", "max") for value in (0.125, np.nan)]


@pytest.mark.parametrize(("field", "node", "value"), BROKEN)
def test_check_names_the_broken_node(field, node, value):
    tree = build(jnp.ones(1000), fanout=4)  # levels of 1000, 252, 64, 16 and 4 nodes, and the roots
    check(tree)
    if field == "leaves":
        broken = tree.replace(leaves=tree.leaves.at[node].set(value))
        with pytest.raises(ValueError, match=f"level 0, node {node} of leaves"):
            check(broken)
        return
    (above,), statistic = tree.nodes, ALL.index(field)
    for height, (start, size) in enumerate([(0, 252), (756, 64), (948, 16), (996, 4)], start=1):
        broken = tree.replace(nodes=(above.at[start + statistic * size + node].set(value),))
        with pytest.raises(ValueError, match=f"level {height}, node {node} of {field}"):
            check(broken)
    with pytest.raises(ValueError, match=f"level 5, node 0 of {field}"):
        check(tree.replace(roots=tree.roots.at[statistic].set(value)))


def test_check_covers_padding_and_shapes():
    tree = build(jnp.ones(1000), fanout=16)
    assert tree.leaves.size == 1008
    with pytest.raises(ValueError, match="node 1003 of leaves"):
        check(tree.replace(leaves=tree.leaves.at[1003].set(1.0)))
    with pytest.raises(ValueError, match=r"nodes\[0\] has shape"):
        check(tree.replace(nodes=(tree.nodes[0][:-1],)))
    with pytest.raises(ValueError, match="roots has shape"):
        check(tree.replace(roots=tree.roots[:2]))
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(check)(tree)

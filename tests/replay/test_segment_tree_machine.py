"""rlkit.replay.segment_tree under random operations, against two NumPy arrays."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tree_invariants import check_tree

from rlkit.replay import segment_tree

CAPACITY, FANOUT, ROWS = 300, 2, 4  # levels of 300, 150, 76 and 64 nodes
write = jax.jit(segment_tree.write, static_argnames="in_maximum")
sample = jax.jit(segment_tree.sample, static_argnums=2, static_argnames="stratified")
find, values = jax.jit(segment_tree.find), jax.jit(segment_tree.values)
EMPTY = jax.jit(lambda: segment_tree.init(CAPACITY, fanout=FANOUT))()

INDEX = st.one_of(st.integers(0, CAPACITY - 1), st.sampled_from([0, 1, 299, 298, 300, 301, -1, -300, 2**31 - 1]))
VALUE = st.one_of(
    st.floats(0, 10, width=32),
    st.sampled_from([0.0, 1e-30, 1e-6, 0.1, 1.0, 1.0, 3e7, 1e30, -1.0, float("nan"), float("inf"), 1e-40]),
)


class Machine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.tree = EMPTY
        self.values, self.counted = np.zeros(CAPACITY, np.float32), np.zeros(CAPACITY, bool)

    def write(self, pairs, in_maximum):
        index, value = np.array([i for i, _ in pairs], np.int32), np.array([v for _, v in pairs], np.float32)
        self.tree = write(self.tree, index, value, in_maximum=in_maximum)
        fit = np.minimum(np.where(value >= 2.0**-126, value, 0), np.float32(2.0**96))
        for i in {i for i in index.tolist() if 0 <= i < CAPACITY}:
            self.values[i], self.counted[i] = fit[index == i].max(), in_maximum

    @rule(pairs=st.lists(st.tuples(INDEX, VALUE), min_size=ROWS, max_size=ROWS), in_maximum=st.booleans())
    def write_some(self, pairs, in_maximum):
        self.write(pairs, in_maximum)

    @rule(pair=st.tuples(INDEX, VALUE), in_maximum=st.booleans())
    def write_one(self, pair, in_maximum):
        self.write([pair], in_maximum)

    @rule(seed=st.integers(0, 2**16))
    def fill(self, seed):
        self.values = np.random.default_rng(seed).exponential(size=CAPACITY).astype(np.float32)
        self.counted[:] = True
        self.tree = write(self.tree, np.arange(CAPACITY, dtype=np.int32), self.values, in_maximum=True)

    @rule()
    def empty(self):
        self.write([(i, 0.0) for i in range(CAPACITY)], True)

    @rule(seed=st.integers(0, 2**16), stratified=st.booleans())
    def draw(self, seed, stratified):
        drawn = np.asarray(sample(self.tree, jax.random.key(seed), 16, stratified=stratified))
        assert np.all(self.values[drawn] > 0) if self.values.any() else not drawn.any()

    @rule(shares=st.lists(st.floats(0, 1, width=32), min_size=ROWS, max_size=ROWS))
    def look_up(self, shares):
        if not self.values.any():
            return
        masses = np.float32(shares) * np.float32(segment_tree.total(self.tree))
        leaf = np.asarray(find(self.tree, masses))
        ends = np.cumsum(self.values, dtype=np.float64)
        slack = 1e-5 * ends[-1]
        assert np.all(self.values[leaf] > 0)
        assert np.all(ends[leaf] - self.values[leaf] <= masses + slack)
        assert np.all(ends[leaf] >= masses - slack)

    @invariant()
    def everything_agrees(self):
        check_tree(self.tree)
        np.testing.assert_array_equal(values(self.tree), self.values)
        positive, counted = self.values[self.values > 0], self.values[self.counted]
        total = self.values.sum(dtype=np.float64)
        assert abs(float(segment_tree.total(self.tree)) - total) <= 1e-6 * total
        assert segment_tree.minimum(self.tree) == positive.min(initial=np.inf)
        assert segment_tree.maximum(self.tree) == counted.max(initial=0)


@pytest.mark.thorough
def test_random_operations_agree_with_the_model():
    limits = settings(max_examples=30, stateful_step_count=20, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(Machine, settings=limits)

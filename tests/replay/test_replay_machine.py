"""Random operations on buffers and on their models; hypothesis finds the shortest sequence that differs."""

from copy import deepcopy

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from buffer_invariants import check_buffer
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from replay_model import FEW, HEART, KINDS, B, Harness, R

PRIORITIES = st.sampled_from([0.0, 1e-4, 0.5, 3.0, -2.0, 1e6, float("nan"), float("inf")])


@pytest.mark.thorough
def machine(harness: Harness) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        @initialize(seed=st.integers(0, 2**16))
        def start(self, seed):
            harness.restart(seed)
            self.samples, self.saved = [], None

        @rule(num_steps=st.sampled_from([1, 3, R]))  # few shapes: each compiles once
        def add(self, num_steps):
            harness.add(num_steps)

        @rule(seed=st.integers(0, 2**16))
        def sample(self, seed):
            self.samples.append(harness.sample(jax.random.key(seed)))

        @precondition(lambda self: any(starts for _, starts in self.samples))
        @rule(data=st.data())
        def update(self, data):
            sample, starts = data.draw(st.sampled_from([pair for pair in self.samples if pair[1]]), "sample")
            few = data.draw(st.lists(PRIORITIES, min_size=4, max_size=4), "priorities")
            harness.update(sample, starts, np.resize(np.array(few, np.float32), B))

        @rule()
        def save(self):
            model = harness.model
            self.saved = (
                jax.tree.map(np.array, harness.state),
                list(model.rows),
                dict(model.mass),
                dict(model.measured),
                deepcopy(harness.stream),
            )

        @precondition(lambda self: self.saved is not None)
        @rule()
        def restore(self):
            state, rows, mass, measured, stream = self.saved
            harness.stream = deepcopy(stream)
            harness.state = jax.tree.map(jax.numpy.asarray, state)
            harness.model.rows, harness.model.mass, harness.model.measured = list(rows), dict(mass), dict(measured)

        @invariant()
        def holds(self):
            check_buffer(harness.state)

    return Machine


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [k if k in HEART else pytest.param(k, marks=pytest.mark.slow) for k in FEW])
def test_random_operations(kind):
    harness = Harness(*KINDS[kind])
    limits = settings(max_examples=6, stateful_step_count=15, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(machine(harness), settings=limits)

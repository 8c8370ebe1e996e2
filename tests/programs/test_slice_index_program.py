"""Compiled programs of the slice index: no step reads the whole ring, and a donated index is not copied."""

import math
import re
from collections import Counter
from functools import partial

import jax
import numpy as np
import pytest
from slice_index_model import (
    KINDS,
)

from rlkit.replay import slice_index

pytestmark = pytest.mark.thorough


def large_ops(text: str, elements: int) -> Counter:
    """Count the instructions of each kind in an optimized program with a result of so many elements or more."""
    counts = Counter()
    for shape, name in re.findall(r"= (.*?) ([a-z][a-z-]*)\(", text):
        sizes = [math.prod(int(n) for n in dims.split(",") if n) for dims in re.findall(r"\w\[([\d,]*)\]", shape)]
        counts[name] += max(sizes, default=0) >= elements
    return +counts


ALLOWED = {"parameter", "tuple", "get-tuple-element", "while", "fusion", "gather", "scatter", "bitcast"} | {
    "dynamic-slice",
    "dynamic-update-slice",
}


def compiled(step, state, num_states=None):
    """Compile a scan of `step(state, done, key)`, which returns a state and draws; the state is donated."""
    run = lambda state, dones, keys: jax.lax.scan(lambda s, x: step(s, *x), state, (dones, keys))  # noqa: E731
    args = state, jax.ShapeDtypeStruct((3, 8, 16), bool), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    if num_states:
        run = jax.vmap(run)
        args = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_states, *x.shape), x.dtype), args)
    return jax.jit(run, donate_argnums=0).lower(*args).compile()


def add_and_sample(state, done, key):
    state = slice_index.add(state, done)
    return state, slice_index.sample(state, key, 32)


@pytest.mark.parametrize(
    ("kind", "num_states"),
    [
        *(("strict", None), ("strict, by episode", 4), ("padded", 4)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("strict", 4), ("strict, by episode", None), ("padded", None))
        ),
    ],
)
def test_no_step_reads_the_whole_ring(kind, num_states):
    """At 2^20 steps: nothing as large as the rows of the ring is copied, selected, sorted or reduced."""
    state = jax.eval_shape(partial(slice_index.init, 2**16, 16, 4, **KINDS[kind]))
    program = compiled(add_and_sample, state, num_states)
    ops = large_ops(program.as_text(), 2**16)
    assert ops["scatter"] > 0
    assert set(ops) <= ALLOWED
    memory = program.memory_analysis()
    assert memory.temp_size_in_bytes < 2**18
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= size * (num_states or 1)


def test_the_check_fails_for_a_step_that_reads_the_whole_ring():
    def step(state, done, key):
        new, drawn = add_and_sample(state, done, key)
        return jax.lax.cond(done[0, 0], lambda: new, lambda: state), drawn

    state = jax.eval_shape(partial(slice_index.init, 2**16, 16, 4))
    assert not set(large_ops(compiled(step, state, 4).as_text(), 2**16)) <= ALLOWED


@pytest.mark.parametrize("kind", ["strict", "strict, by episode", "padded"])
def test_a_donated_state_keeps_its_memory_address(kind):
    state = slice_index.init(64, 2, 3, **KINDS[kind])
    large = lambda state: [x.unsafe_buffer_pointer() for x in jax.tree.leaves(state) if x.size >= 40]  # noqa: E731
    before = large(state)
    assert large(jax.jit(slice_index.add, donate_argnums=0)(state, np.zeros((5, 2), bool))) == before

"""Compiled programs of the segment tree: nothing copies or selects a whole tree."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_tree import ALL, find, init, read, sample, write

from rlkit._cpu.switch import enabled
from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import total

pytestmark = pytest.mark.thorough


@pytest.mark.skipif(not enabled(), reason="without `_cpu.materialize`, XLA copies the levels above the leaves")
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

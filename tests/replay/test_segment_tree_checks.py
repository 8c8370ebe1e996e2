"""rlkit.replay.segment_tree: errors of bad arguments, and of a broken tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_tree import ALL, build, find, init, sample, write
from tree_invariants import check_tree

from rlkit.replay import segment_tree
from rlkit.replay.segment_tree import maximum, minimum, total


def test_bad_arguments_of_a_run_are_named():
    tree = segment_tree.init(10)
    jax.tree.map(np.testing.assert_array_equal, segment_tree.write_run(tree, 3, jnp.zeros(0)), tree)
    for start, size in ((jnp.zeros(2, jnp.int32), 2), (0, 11)):
        with pytest.raises(ValueError, match="B <= 10"):
            segment_tree.write_run(tree, start, jnp.zeros(size))
    with pytest.raises(ValueError, match="expected integers"):
        segment_tree.write_run(tree, 0.0, jnp.zeros(2))


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


BROKEN = [("leaves", 17, np.nan), ("leaves", 17, 1e30), ("leaves", 999, 1e-39)]

BROKEN += [(field, 3, value) for field in ("sum", "min", "max") for value in (0.125, np.nan)]


@pytest.mark.parametrize(("field", "node", "value"), BROKEN)
def test_check_names_the_broken_node(field, node, value):
    tree = build(jnp.ones(1000), fanout=4)  # levels of 1000, 252, 64, 16 and 4 nodes, and the roots
    check_tree(tree)
    if field == "leaves":
        broken = tree.replace(leaves=tree.leaves.at[node].set(value))
        with pytest.raises(ValueError, match=f"level 0, node {node} of leaves"):
            check_tree(broken)
        return
    (above,), statistic = tree.nodes, ALL.index(field)
    for height, (start, size) in enumerate([(0, 252), (756, 64), (948, 16), (996, 4)], start=1):
        broken = tree.replace(nodes=(above.at[start + statistic * size + node].set(value),))
        with pytest.raises(ValueError, match=f"level {height}, node {node} of {field}"):
            check_tree(broken)
    with pytest.raises(ValueError, match=f"level 5, node 0 of {field}"):
        check_tree(tree.replace(roots=tree.roots.at[statistic].set(value)))


def test_check_covers_padding_and_shapes():
    tree = build(jnp.ones(1000), fanout=16)
    assert tree.leaves.size == 1008
    with pytest.raises(ValueError, match="node 1003 of leaves"):
        check_tree(tree.replace(leaves=tree.leaves.at[1003].set(1.0)))
    with pytest.raises(ValueError, match=r"nodes\[0\] has shape"):
        check_tree(tree.replace(nodes=(tree.nodes[0][:-1],)))
    with pytest.raises(ValueError, match="roots has shape"):
        check_tree(tree.replace(roots=tree.roots[:2]))
    with pytest.raises(ValueError, match="outside of jit"):
        jax.jit(check_tree)(tree)

"""rlkit.replay.segment_tree: errors of bad arguments, and of a broken tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_tree import ALL, build, find, init, sample, write
from mistakes import mistake
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
    tree = init(10)
    for part, call, *arguments in (
        ("capacity=0 ", init, 0),
        (f"capacity={2**31} ", init, 2**31),
        ("fanout=6 ", lambda: init(10, fanout=6)),
        ("statistics=", init, 10, ("mean",)),
        ("statistics=", init, 10, ()),
        ("shape (2, 3)", build, jnp.ones((2, 3))),
        ("value has shape (2, 1)", write, tree, jnp.array([1, 2]), jnp.ones((2, 1))),
        ("index has shape ()", write, tree, 3, 1.0),
        ("index has dtype float32", write, tree, jnp.ones(2), jnp.ones(2)),
        ("batch_size=0", sample, tree, jax.random.key(0), 0),
    ):
        with mistake(part, kind=ValueError):
            call(*arguments)


@pytest.mark.parametrize("fn", [total, lambda t: find(t, jnp.ones(1)), lambda t: sample(t, jax.random.key(0), 1)])
def test_a_statistic_that_is_not_kept_is_named(fn):
    with pytest.raises(ValueError, match="'sum'"):
        fn(init(10, ("min", "max")))
    for name, needs in (("min", minimum), ("max", maximum)):
        with pytest.raises(ValueError, match=f"'{name}'"):
            needs(init(10, ("sum",)))


@pytest.mark.parametrize(("field", "value"), [("leaves", 1e30), ("sum", 0.125), ("min", np.nan), ("max", 0.125)])
def test_the_invariants_of_the_tests_find_a_broken_node(field, value):
    tree = build(jnp.ones(1000), fanout=16 if field == "leaves" else 4)  # levels of 1000, 252, 64, 16 and 4 nodes
    check_tree(tree)
    if field == "leaves":  # 1,008 of them; the last ones are padding
        broken = [
            tree.replace(leaves=tree.leaves.at[17].set(value)),
            tree.replace(leaves=tree.leaves.at[1001].set(1.0)),
        ]
    else:
        (above,), statistic = tree.nodes, ALL.index(field)
        nodes = [start + statistic * size + 3 for start, size in [(0, 252), (756, 64), (948, 16), (996, 4)]]
        broken = [tree.replace(nodes=(above.at[node].set(value),)) for node in nodes]
        broken.append(tree.replace(roots=tree.roots.at[statistic].set(value)))
    for one in broken:
        with pytest.raises(ValueError, match=field):
            check_tree(one)

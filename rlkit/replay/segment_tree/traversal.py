"""Traversal of a segment tree: from written leaves up to the roots, and from a mass down to a leaf.

Levels that share an array are traversed in a loop, which keeps the compiled program small. The functions are jitted,
because JAX compiles a loop anew whenever it is called outside of jit.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rlkit import _cpu
from rlkit._mesh import vary_like
from rlkit.replay.segment_tree import layout
from rlkit.replay.segment_tree.layout import SegmentTree
from rlkit.types import Array

MAX_NODES_BY_MASS = 4096  # in levels of more nodes a float32 mass has too few bits left to tell them apart


@jax.jit
def recompute_above(tree: SegmentTree, leaf: Array) -> SegmentTree:
    """Return the tree with all nodes above the leaves [B] recomputed."""
    for height in range(layout.levels_of(tree).num_own):
        level = _recompute_level(tree, height, _below(tree, height), tree.nodes[height], leaf)
        tree = _replace_array(tree, height, level)
    return _recompute_shared(tree, leaf)


@partial(jax.jit, static_argnames="count")
def recompute_above_run(tree: SegmentTree, start: Array, count: int) -> SegmentTree:
    """Return the tree with all nodes above `count` consecutive leaves, from `start` on, recomputed.

    Their parents are consecutive, too: in a level with an array of its own, a slice is read and written.
    """
    levels, statistics, fanout = layout.levels_of(tree), tree.statistics, tree.fanout
    bits, first, touched = fanout.bit_length() - 1, start, count
    for height in range(levels.num_own):
        parents = (levels.leaves, *levels.sizes)[height] // fanout
        touched = min(-(-(touched - 1) // fanout) + 1, parents)
        first = jnp.minimum(first >> bits, parents - touched)
        below, level = _below(tree, height), tree.nodes[height]
        for i, name in enumerate(statistics):
            offset = 0 if height == 0 else i * levels.sizes[height - 1]
            row = jax.lax.dynamic_slice(below, (offset + (first << bits),), (touched * fanout,)).reshape(-1, fanout)
            new = layout.fold(name, layout.from_leaves(name, row) if height == 0 else row)
            level = jax.lax.dynamic_update_slice(level, new, (i * levels.sizes[height] + first,))
        tree = _replace_array(tree, height, level)
    return _recompute_shared(tree, start + jnp.arange(count, dtype=jnp.int32))


def _recompute_shared(tree: SegmentTree, leaf: Array) -> SegmentTree:
    """Return the tree with the levels of the shared array, and the roots, recomputed above the leaves [B]."""
    levels, statistics, level = layout.levels_of(tree), tree.statistics, tree.nodes[-1]
    if levels.num_sparse:
        level = _recompute_level(tree, levels.num_own, _below(tree, levels.num_own), level, leaf)
        level = jax.lax.fori_loop(
            levels.num_own + 1,
            levels.num_sparse,
            lambda height, level: _recompute_level(tree, height, level, level, leaf),
            vary_like(level, leaf),
        )
        top, size = levels.starts[levels.num_sparse - 1], levels.sizes[levels.num_sparse - 1]
        below = _cpu.materialize(level[top : top + len(statistics) * size]).reshape(len(statistics), -1)
    else:
        below = jnp.stack([layout.from_leaves(name, tree.leaves) for name in statistics])
    above, roots = layout.fold_up(below, levels.sizes[levels.num_sparse :], tree.fanout, statistics)
    if above:
        level = jax.lax.dynamic_update_slice(level, jnp.concatenate(above), (levels.starts[levels.num_sparse],))
    return _replace_array(tree, len(tree.nodes) - 1, level).replace(roots=roots)


def _recompute_level(tree: SegmentTree, height: Array | int, below: Array, level: Array, leaf: Array) -> Array:
    """Return the array `level` with its nodes at `height` above the leaves [B] recomputed from the array `below`."""
    levels, statistics, fanout = layout.levels_of(tree), tree.statistics, tree.fanout
    sizes, starts = (jnp.array(x, jnp.int32) for x in (levels.sizes, levels.starts))
    bits, node = fanout.bit_length() - 1, leaf >> ((fanout.bit_length() - 1) * (height + 1))

    def indices(height: Array | int, node: Array) -> Array:
        """Array indices [S * B] of nodes [B] of a level, for each statistic."""
        offset = starts[height] + jnp.arange(len(statistics), dtype=jnp.int32) * sizes[height]
        return (offset[:, None] + node[None]).reshape(-1)

    if isinstance(height, int) and height == 0:
        row = layout.windows(below, node << bits, fanout)
        rows = jnp.stack([layout.from_leaves(name, row) for name in statistics])
    else:
        rows = layout.windows(below, indices(height - 1, node << bits), fanout).reshape(len(statistics), -1, fanout)
    new = jnp.concatenate([layout.fold(name, row) for name, row in zip(statistics, rows, strict=True)])
    return layout.scatter("set", level, indices(height, node), new, layout.IN_BOUNDS)


def _below(tree: SegmentTree, height: int) -> Array:
    """Array of the children of the level at `height`."""
    return tree.leaves if height == 0 else tree.nodes[height - 1]


def _replace_array(tree: SegmentTree, i: int, array: Array) -> SegmentTree:
    return tree.replace(nodes=(*tree.nodes[:i], array, *tree.nodes[i + 1 :]))


@jax.jit
def descend(tree: SegmentTree, mass: Array, draws: Array | None) -> tuple[Array, Array]:
    """Descend from the root to the leaves at which the running sum passes each mass.

    Args:
      tree: one that keeps "sum".
      mass: [B] float32.
      draws: [F, B] float32 in [0, 1), which replace the mass in the F levels of more than MAX_NODES_BY_MASS nodes; None
        to use the mass in all levels.

    Returns:
      The leaves [B] int32, and their values [B].
    """
    levels, bits = layout.levels_of(tree), tree.fanout.bit_length() - 1
    starts = jnp.array(levels.starts, jnp.int32)  # of the sums, which come first
    num_shared = len(levels.sizes) - levels.num_own
    drawn_anew = [draws is not None and size > MAX_NODES_BY_MASS for size in (levels.leaves, *levels.sizes)]
    unused = [] if draws is None else list(draws)

    def down(level: Array, start: Array | int, node: Array, mass: Array, draw: Array | None):
        row = jnp.abs(layout.windows(level, start + (node << bits), tree.fanout))
        mass = mass if draw is None else draw * layout.fold("sum", row)
        child, mass, value = layout.pick(row, mass)
        return (node << bits) + child, mass, value

    def down_by_mass(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return down(tree.nodes[-1], starts[len(levels.sizes) - 1 - i], *carry, None)[:2]

    carry = (jnp.zeros(mass.shape, jnp.int32), jnp.where(mass > 0, mass, 0.0))
    num_by_mass = num_shared - sum(drawn_anew[1 + levels.num_own :])
    node, mass = jax.lax.fori_loop(0, num_by_mass, down_by_mass, vary_like(carry, tree.nodes[-1]))
    arrays = [(tree.leaves, 0), *((level, 0) for level in tree.nodes[:-1])]
    arrays += [(tree.nodes[-1], start) for start in levels.starts[levels.num_own :]]
    for (level, start), is_drawn in reversed(list(zip(arrays, drawn_anew, strict=True))):
        if is_drawn or level is not tree.nodes[-1]:
            step = down(level, start, node, mass, unused.pop() if is_drawn else None)
            node, mass, value = map(_cpu.materialize, step)  # every level reads the node above it several times
    return node, value  # the leaves come last, and always by themselves

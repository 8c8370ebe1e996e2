"""The two ways through a segment tree: from leaves that were written up to the roots, and from a mass down to a leaf.

Levels that share an array are gone through in a loop, whose program is small and whose steps XLA keeps on one thread.
"""

import jax
import jax.numpy as jnp

from rlkit._cpu.primitives import hold
from rlkit.replay.segment_tree import layout as nodes
from rlkit.replay.segment_tree.layout import SegmentTree
from rlkit.types import Array

FINE = 4096  # in levels of more nodes a float32 mass has too few bits left to tell them apart


def refreshed(tree: SegmentTree, leaf: Array) -> SegmentTree:
    """The tree with all above the leaves [B] computed anew."""
    for height in range(nodes.levels_of(tree).wide):
        tree = _with_array(tree, height, _written(tree, height, _below(tree, height), tree.nodes[height], leaf))
    return _narrow_refreshed(tree, leaf)


def run_refreshed(tree: SegmentTree, start: Array, count: int) -> SegmentTree:
    """The tree with all above `count` leaves in a row, from `start` on, computed anew.

    Their parents are in a row, too: of a level with an array of its own, one kernel reads and writes a slice.
    """
    where, kept, fanout = nodes.levels_of(tree), tree.statistics, tree.fanout
    bits, first, touched = fanout.bit_length() - 1, start, count
    for height in range(where.wide):
        parents = (where.leaves, *where.sizes)[height] // fanout
        touched = min(-(-(touched - 1) // fanout) + 1, parents)
        first = jnp.minimum(first >> bits, parents - touched)
        below, level = _below(tree, height), tree.nodes[height]
        for i, name in enumerate(kept):
            shift = 0 if height == 0 else i * where.sizes[height - 1]
            row = jax.lax.dynamic_slice(below, (shift + (first << bits),), (touched * fanout,)).reshape(-1, fanout)
            new = nodes.fold(name, nodes.from_leaves(name, row) if height == 0 else row)
            level = jax.lax.dynamic_update_slice(level, new, (i * where.sizes[height] + first,))
        tree = _with_array(tree, height, level)
    return _narrow_refreshed(tree, start + jnp.arange(count, dtype=jnp.int32))


def _narrow_refreshed(tree: SegmentTree, leaf: Array) -> SegmentTree:
    """The tree with the levels that share an array, and the roots, computed anew above the leaves [B]."""
    where, kept, level = nodes.levels_of(tree), tree.statistics, tree.nodes[-1]
    if where.sparse:
        level = _written(tree, where.wide, _below(tree, where.wide), level, leaf)
        level = jax.lax.fori_loop(
            where.wide + 1, where.sparse, lambda height, level: _written(tree, height, level, level, leaf), level
        )
        top, size = where.starts[where.sparse - 1], where.sizes[where.sparse - 1]
        below = hold(level[top : top + len(kept) * size]).reshape(len(kept), -1)
    else:
        below = jnp.stack([nodes.from_leaves(name, tree.leaves) for name in kept])
    above, roots = nodes.fold_up(below, where.sizes[where.sparse :], tree.fanout, kept)
    if above:
        level = jax.lax.dynamic_update_slice(level, jnp.concatenate(above), (where.starts[where.sparse],))
    return _with_array(tree, len(tree.nodes) - 1, level).replace(roots=roots)


def _written(tree: SegmentTree, height: Array | int, below: Array, level: Array, leaf: Array) -> Array:
    """The array `level` with what it holds at `height` above the leaves [B] computed from the array `below`."""
    where, kept, fanout = nodes.levels_of(tree), tree.statistics, tree.fanout
    sizes, starts = (jnp.array(x, jnp.int32) for x in (where.sizes, where.starts))
    bits, node = fanout.bit_length() - 1, leaf >> ((fanout.bit_length() - 1) * (height + 1))

    def places(height: Array | int, node: Array) -> Array:
        """[S * B], of node [B] of a level, for each statistic."""
        offset = starts[height] + jnp.arange(len(kept), dtype=jnp.int32) * sizes[height]
        return (offset[:, None] + node[None]).reshape(-1)

    if isinstance(height, int) and height == 0:
        row = nodes.windows(below, node << bits, fanout)
        rows = jnp.stack([nodes.from_leaves(name, row) for name in kept])
    else:
        rows = nodes.windows(below, places(height - 1, node << bits), fanout).reshape(len(kept), -1, fanout)
    new = jnp.concatenate([nodes.fold(name, row) for name, row in zip(kept, rows, strict=True)])
    return nodes.scatter("set", level, places(height, node), new, nodes.IN_BOUNDS)


def _below(tree: SegmentTree, height: int) -> Array:
    """The array that holds what the level at `height` is computed from."""
    return tree.leaves if height == 0 else tree.nodes[height - 1]


def _with_array(tree: SegmentTree, which: int, array: Array) -> SegmentTree:
    return tree.replace(nodes=(*tree.nodes[:which], array, *tree.nodes[which + 1 :]))


def descend(tree: SegmentTree, mass: Array, draws: Array | None) -> tuple[Array, Array]:
    """mass [B] -> leaf [B] int32, and its value [B].

    In levels of more than FINE nodes the draws, [F, B] in [0, 1), replace the mass.
    """
    where, bits = nodes.levels_of(tree), tree.fanout.bit_length() - 1
    starts = jnp.array(where.starts, jnp.int32)  # the sums come first
    narrow = len(where.sizes) - where.wide
    fine = [draws is not None and size > FINE for size in (where.leaves, *where.sizes)]
    unused = [] if draws is None else list(draws)

    def down(level: Array, start: Array | int, node: Array, mass: Array, draw: Array | None):
        row = jnp.abs(nodes.windows(level, start + (node << bits), tree.fanout))
        mass = mass if draw is None else draw * nodes.fold("sum", row)
        child, mass, value = nodes.pick(row, mass)
        return (node << bits) + child, mass, value

    def coarse(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return down(tree.nodes[-1], starts[len(where.sizes) - 1 - i], *carry, None)[:2]

    carry = (jnp.zeros(mass.shape, jnp.int32), jnp.where(mass > 0, mass, 0.0))
    node, mass = jax.lax.fori_loop(0, narrow - sum(fine[1 + where.wide :]), coarse, carry)
    levels = [(tree.leaves, 0), *((level, 0) for level in tree.nodes[:-1])]
    levels += [(tree.nodes[-1], start) for start in where.starts[where.wide :]]
    for (level, start), draw in reversed(list(zip(levels, fine, strict=True))):
        if draw or level is not tree.nodes[-1]:
            found = down(level, start, node, mass, unused.pop() if draw else None)
            node, mass, value = map(hold, found)
    return node, value  # the leaves come last, and always by themselves

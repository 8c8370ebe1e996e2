"""The two ways through a segment tree: from leaves that were written up to the roots, and from a mass down to a leaf.

Levels that share an array are gone through in a loop, whose program is small and whose steps XLA keeps on one thread.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from rlkit.ops import _tree_nodes as nodes
from rlkit.types import Array

if TYPE_CHECKING:
    from rlkit.ops.segment_tree import SegmentTree

FINE = 4096  # in levels of more nodes a float32 mass has too few bits left to tell them apart


def refreshed(tree: "SegmentTree", leaf: Array) -> "SegmentTree":
    """The tree with all above the leaves [B] computed anew."""
    where, kept, fanout = nodes.levels_of(tree), tree.statistics, tree.fanout
    bits, num = fanout.bit_length() - 1, len(tree.statistics)
    sizes, starts = (jnp.array(x, jnp.int32) for x in (where.sizes, where.starts))

    def places(height: Array | int, node: Array) -> Array:
        """[S * B], of node [B] of a level, for each statistic."""
        offset = starts[height] + jnp.arange(num, dtype=jnp.int32) * sizes[height]
        return (offset[:, None] + node[None]).reshape(-1)

    def folded(rows: Array) -> Array:
        """[S, B, K] -> [S * B]."""
        return jnp.concatenate([nodes.fold(name, rows[i]) for i, name in enumerate(kept)])

    def up(height: Array | int, below: Array, level: Array) -> Array:
        node = leaf >> (bits * (height + 1))
        rows = nodes.windows(below, places(height - 1, node << bits), fanout).reshape(num, -1, fanout)
        return nodes.scatter("set", level, places(height, node), folded(rows), nodes.IN_BOUNDS)

    stored = list(tree.nodes)
    if where.sparse:
        node = leaf >> bits
        row = nodes.windows(tree.leaves, node << bits, fanout)
        rows = jnp.stack([nodes.from_leaves(name, row) for name in kept])
        stored[0] = nodes.scatter("set", stored[0], places(0, node), folded(rows), nodes.IN_BOUNDS)
        for height in range(1, where.wide + 1):
            stored[height] = up(height, stored[height - 1], stored[height])
        stored[-1] = jax.lax.fori_loop(
            where.wide + 1, where.sparse, lambda height, level: up(height, level, level), stored[-1]
        )
        top = where.starts[where.sparse - 1]
        below = nodes.hold(stored[-1][top : top + num * where.sizes[where.sparse - 1]]).reshape(num, -1)
    else:
        below = jnp.stack([nodes.from_leaves(name, tree.leaves) for name in kept])
    above, roots = nodes.fold_up(below, where.sizes[where.sparse :], fanout, kept)
    if above:
        start = (where.starts[where.sparse],)
        stored[-1] = jax.lax.dynamic_update_slice(stored[-1], jnp.concatenate(above), start)
    return tree.replace(nodes=tuple(stored), roots=roots)


def descend(tree: "SegmentTree", mass: Array, draws: Array | None) -> Array:
    """mass [B] -> leaf [B] int32. In levels of more than FINE nodes the draws, [F, B] in [0, 1), replace the mass."""
    where, bits = nodes.levels_of(tree), tree.fanout.bit_length() - 1
    starts = jnp.array(where.starts, jnp.int32)  # the sums come first
    narrow = len(where.sizes) - where.wide
    fine = [draws is not None and size > FINE for size in (where.leaves, *where.sizes)]
    unused = [] if draws is None else list(draws)

    def down(level: Array, start: Array | int, carry: tuple[Array, Array], draw: Array | None) -> tuple[Array, Array]:
        node, mass = carry
        row = jnp.abs(nodes.windows(level, start + (node << bits), tree.fanout))
        mass = mass if draw is None else draw * nodes.fold("sum", row)
        child, mass = nodes.pick(row, mass)
        return (node << bits) + child, mass

    def coarse(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        return down(tree.nodes[-1], starts[len(where.sizes) - 1 - i], carry, None)

    carry = (jnp.zeros(mass.shape, jnp.int32), jnp.where(mass > 0, mass, 0.0))
    carry = jax.lax.fori_loop(0, narrow - sum(fine[1 + where.wide :]), coarse, carry)
    levels = [(tree.leaves, 0), *((level, 0) for level in tree.nodes[:-1])]
    levels += [(tree.nodes[-1], start) for start in where.starts[where.wide :]]
    for (level, start), draw in reversed(list(zip(levels, fine, strict=True))):
        if draw or level is not tree.nodes[-1]:
            carry = down(level, start, carry, unused.pop() if draw else None)
            carry = jax.tree.map(nodes.hold, carry)
    return carry[0]

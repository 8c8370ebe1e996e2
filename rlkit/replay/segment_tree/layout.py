"""Nodes of a segment tree: their arrays, parents computed from children, and the choice of a child by mass."""

from collections.abc import Sequence
from typing import NamedTuple

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlkit.replay.short_repr import short_repr
from rlkit.types import Array, StateNode

SMALLEST, LARGEST = 2.0**-126, 2.0**96  # range of the values other than 0
STATISTICS = ("sum", "min", "max")
IN_BOUNDS = "promise_in_bounds"
EMPTY = {"sum": 0.0, "min": np.inf, "max": 0.0}  # of a node all of whose leaves are 0
PAIR = {  # without the test for NaN that jnp.minimum has, as no value is NaN
    "sum": jnp.add,
    "min": lambda a, b: jnp.where(a < b, a, b),
    "max": lambda a, b: jnp.where(a > b, a, b),
}
FANOUT = 8  # 2, 4, 16 and 64 are slower on a CPU (benchmarks/replay/NOTES.md)
MAX_DENSE_NODES = 32  # levels of so few nodes are recomputed as a whole, others only where leaves were written
MAX_SHARED_NODES = 50_000  # levels of so few nodes share one array: larger ones would make all its gathers slower

_WINDOWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
_NUMBERS = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
_SCATTER = {"set": lax.scatter, "min": lax.scatter_min, "max": lax.scatter_max}


class SegmentTree(StateNode):
    """Tree over `capacity` values, in few arrays, as every argument of a compiled call costs time.

    Attributes:
      leaves: [capacity, rounded up] float32, the values, negated where `maximum` leaves them out; 0 from capacity on.
      nodes: [...] float32 each, all levels above; `levels` describes their places.
      roots: [S] float32, of the total, the minimum and the maximum those that the tree keeps.
      capacity, fanout, statistics: as given to `init`, static; the statistics in the order of `roots`.
    """

    leaves: Array  # [capacity, rounded up]
    nodes: tuple[Array, ...]  # [M] each
    roots: Array  # [S]
    capacity: int = flax.struct.field(pytree_node=False)
    fanout: int = flax.struct.field(pytree_node=False)
    statistics: tuple[str, ...] = flax.struct.field(pytree_node=False)

    __repr__ = short_repr


class Levels(NamedTuple):
    """Sizes and places of the levels: level 0 is the leaves' parents, the last is as wide as the fan-out.

    A level holds `size` nodes for each statistic, one stretch after another. Large levels have an array each; the
    others follow each other in one shared array.
    """

    leaves: int  # number of leaves, with padding
    sizes: tuple[int, ...]  # nodes of each level for one statistic, with padding
    starts: tuple[int, ...]  # first index of each level in its array
    num_own: int  # number of levels with an array of their own
    num_sparse: int  # number of levels that are written node by node; the others, near the root, as a whole

    def arrays(self, num_statistics: int) -> list[int]:
        """Size of each array of nodes."""
        sizes = [num_statistics * size for size in self.sizes]
        return [*sizes[: self.num_own], sum(sizes[self.num_own :])]


def levels(capacity: int, fanout: int, num_statistics: int) -> Levels:
    """Return the levels of a tree. Raises ValueError where a size is out of range."""
    if not 1 <= capacity < 2**31:
        raise ValueError(f"capacity={capacity} must lie in [1, 2^31 - 1], so that int32 numbers the leaves")
    if fanout < 2 or fanout & (fanout - 1):
        raise ValueError(f"fanout={fanout} must be a power of two, 2 or more; try {FANOUT}")
    sizes = [_padded(capacity, fanout)]
    while len(sizes) == 1 or sizes[-1] > fanout:
        sizes.append(_padded(sizes[-1] // fanout, fanout))
    num_sparse = sum(size > MAX_DENSE_NODES * fanout for size in sizes)  # by the children, without padding
    leaves, *sizes = sizes
    if num_statistics * sizes[0] >= 2**31:
        raise ValueError(f"fanout={fanout} gives more nodes than int32 numbers; take {FANOUT} or more")
    num_own = sum(num_statistics * size > MAX_SHARED_NODES for size in sizes)
    shared_starts = np.cumsum([0, *(num_statistics * size for size in sizes[num_own:-1])]).tolist()
    return Levels(leaves, tuple(sizes), (0,) * num_own + tuple(shared_starts), num_own, num_sparse)


def levels_of(tree: SegmentTree) -> Levels:
    """Return the levels of a given tree."""
    return levels(tree.capacity, tree.fanout, len(tree.statistics))


def _padded(size: int, fanout: int) -> int:
    return -(-size // fanout) * fanout


def from_leaves(name: str, leaves: Array) -> Array:
    """Terms of a statistic for leaves [...]: the values; without negated leaves for "max", without zeros for "min"."""
    if name == "max":
        return jnp.where(leaves > 0, leaves, 0.0)
    return jnp.abs(leaves) if name == "sum" else jnp.where(leaves == 0, jnp.inf, jnp.abs(leaves))


def fold(name: str, row: Array) -> Array:
    """Combine children [..., a power of two] into their parent [...], in pairs, so that the bits never differ."""
    columns = [row[..., i] for i in range(row.shape[-1])]
    while len(columns) > 1:
        columns = [PAIR[name](a, b) for a, b in zip(columns[0::2], columns[1::2], strict=True)]
    return columns[0]


def fold_up(below: Array, sizes: Sequence[int], fanout: int, statistics: Sequence[str]) -> tuple[list[Array], Array]:
    """Compute all levels above a level, and the roots.

    Args:
      below: [S, n], the statistics of the level.
      sizes: of the levels above it.
      fanout: children of a node.
      statistics: S names.

    Returns:
      [S * size] for each size, and the roots [S].
    """
    levels = []
    for size in sizes:
        rows = below.reshape(len(statistics), -1, fanout)
        parents = [fold(name, row) for name, row in zip(statistics, rows, strict=True)]
        below = jnp.stack(
            [
                jnp.pad(parent, (0, size - parent.size), constant_values=EMPTY[name])
                for name, parent in zip(statistics, parents, strict=True)
            ]
        )
        levels.append(below.reshape(-1))
    return levels, jnp.stack([fold(name, row) for name, row in zip(statistics, below, strict=True)])


def in_arrays(nodes: Sequence[Array], levels: Levels) -> tuple[Array, ...]:
    """Join the nodes of all levels, each [S * size], into the arrays of a tree."""
    return (*nodes[: levels.num_own], jnp.concatenate(nodes[levels.num_own :]))


def windows(level: Array, start: Array, size: int) -> Array:
    """Read stretches of a level: level [n], start [B] -> [B, size], all within the level."""
    return lax.gather(level, start[:, None], _WINDOWS, (size,), mode=IN_BOUNDS)


def scatter(kind: str, level: Array, node: Array, value: Array, mode: str = "drop") -> Array:
    """Set nodes of a level, or take their min or max with values: level [n], node [B], value [B] -> [n].

    A node outside of the level, also a negative one, is dropped. (level.at[node] would count -1 from the end, and need
    int64 for a level of 2^31.)
    """
    return _SCATTER[kind](level, node[:, None], value, _NUMBERS, mode=mode)


def pick(row: Array, mass: Array) -> tuple[Array, Array, Array]:
    """Choose the child at which the running sum of a row of children passes a mass.

    The row is halved repeatedly, in the pairs of `fold`. The right half is entered where it is positive and the mass
    reaches it, so that a child of 0 is chosen only if all are 0.

    Args:
      row: [B or 1, K] float32, values of the children.
      mass: [B] float32.

    Returns:
      The child [B] int32, the mass left in it [B], and its value [B].
    """
    sums = [[row[:, i] for i in range(row.shape[1])]]
    while len(sums[-1]) > 1:
        sums.append([PAIR["sum"](a, b) for a, b in zip(sums[-1][0::2], sums[-1][1::2], strict=True)])
    child = jnp.zeros(mass.shape, jnp.int32)
    while len(sums) > 1:
        sums.pop()
        left, right = sums[-1]
        go_right = (right > 0) & (mass >= left)
        mass = jnp.where(go_right, mass - left, mass)
        child = 2 * child + go_right.astype(jnp.int32)
        sums = [
            [jnp.where(go_right, b, a) for a, b in zip(s[: len(s) // 2], s[len(s) // 2 :], strict=True)] for s in sums
        ]
    return child, mass, sums[0][0]

"""The nodes of a segment tree: where they lie, how children make a parent, how a draw picks a child."""

from collections.abc import Sequence
from typing import NamedTuple

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlkit.types import Array

SMALLEST, LARGEST = 2.0**-126, 2.0**96  # between them lies every value but 0
STATISTICS = ("sum", "min", "max")
IN_BOUNDS = "promise_in_bounds"
EMPTY = {"sum": 0.0, "min": np.inf, "max": 0.0}  # of a node all of whose leaves are 0
PAIR = {  # jnp.minimum would look for NaN too, which is not there
    "sum": jnp.add,
    "min": lambda a, b: jnp.where(a < b, a, b),
    "max": lambda a, b: jnp.where(a > b, a, b),
}
FANOUT = 8  # 2, 4, 16 and 64 are slower on a CPU: benchmarks/replay/NOTES.md says why
TOP = 32  # times the fan-out: what lies above a level of so few nodes is computed as a whole, not where written
# Levels of more nodes have an array of their own. XLA's CPU backend shares a gather or scatter among threads where the
# array is above 256 kB, however little of it is read, and that takes longer than the gather.
WIDE = 50_000

_WINDOWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,))
_NUMBERS = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
_SCATTER = {"set": lax.scatter, "min": lax.scatter_min, "max": lax.scatter_max}


class SegmentTree(flax.struct.PyTreeNode):
    """A tree over `capacity` values, in few arrays, each of which would cost time whenever a program is called.

    Attributes:
      leaves: [capacity, rounded up] float32, the values, below 0 where `maximum` leaves them out; 0 from capacity on.
      nodes: [...] float32 each, all that is above them; `levels` tells what lies where.
      roots: [S] float32, the total, the minimum and the maximum, as far as kept.
      capacity, fanout, statistics: as given to `init`, static; the statistics in the order of `roots`.
    """

    leaves: Array  # [capacity, rounded up]
    nodes: tuple[Array, ...]  # [M] each
    roots: Array  # [S]
    capacity: int = flax.struct.field(pytree_node=False)
    fanout: int = flax.struct.field(pytree_node=False)
    statistics: tuple[str, ...] = flax.struct.field(pytree_node=False)


class Levels(NamedTuple):
    """Where the nodes lie: level 0 is the leaves' parents, the last is as wide as the fan-out.

    A level holds a stretch of `size` nodes for each statistic, one after another. The wide levels have an array each,
    the others share one, in which they follow each other.
    """

    leaves: int  # the leaves, with padding
    sizes: tuple[int, ...]  # of each level for one statistic, with padding
    starts: tuple[int, ...]  # where each level starts in its array
    wide: int  # how many of the levels have an array of their own
    sparse: int  # how many of the levels are written node by node; the others, near the root, as a whole

    def arrays(self, num_statistics: int) -> list[int]:
        """The size of each array of nodes."""
        sizes = [num_statistics * size for size in self.sizes]
        return [*sizes[: self.wide], sum(sizes[self.wide :])]


def levels(capacity: int, fanout: int, num_statistics: int) -> Levels:
    """The levels of a tree. Raises ValueError where a size is out of range."""
    if not 1 <= capacity < 2**31:
        raise ValueError(f"capacity={capacity} must lie in [1, 2^31 - 1], so that int32 numbers the leaves")
    if fanout < 2 or fanout & (fanout - 1):
        raise ValueError(f"fanout={fanout} must be a power of two, 2 or more; try {FANOUT}")
    sizes = [_padded(capacity, fanout)]
    while len(sizes) == 1 or sizes[-1] > fanout:
        sizes.append(_padded(sizes[-1] // fanout, fanout))
    sparse = sum(size > TOP * fanout for size in sizes)
    leaves, *sizes = sizes
    if num_statistics * sizes[0] >= 2**31:
        raise ValueError(f"fanout={fanout} gives more nodes than int32 numbers; take {FANOUT} or more")
    wide = sum(num_statistics * size > WIDE for size in sizes)
    narrow = np.cumsum([0, *(num_statistics * size for size in sizes[wide:-1])]).tolist()
    return Levels(leaves, tuple(sizes), (0,) * wide + tuple(narrow), wide, sparse)


def levels_of(tree: SegmentTree) -> Levels:
    """The levels of a tree at hand."""
    return levels(tree.capacity, tree.fanout, len(tree.statistics))


def _padded(size: int, fanout: int) -> int:
    return -(-size // fanout) * fanout


def from_leaves(name: str, leaves: Array) -> Array:
    """What a statistic sees of the leaves [...]: a leaf below 0 is a value that the maximum leaves out."""
    if name == "max":
        return jnp.where(leaves > 0, leaves, 0.0)
    return jnp.abs(leaves) if name == "sum" else jnp.where(leaves == 0, jnp.inf, jnp.abs(leaves))


def fold(name: str, row: Array) -> Array:
    """[..., a power of two] -> [...], pair by pair: the same bits on every way that leads to a node."""
    columns = [row[..., i] for i in range(row.shape[-1])]
    while len(columns) > 1:
        columns = [PAIR[name](a, b) for a, b in zip(columns[0::2], columns[1::2], strict=True)]
    return columns[0]


def fold_up(below: Array, sizes: Sequence[int], fanout: int, statistics: Sequence[str]) -> tuple[list[Array], Array]:
    """below [S, n], statistics of a level -> the levels above it, of `sizes`, [S * size] each, and the roots [S]."""
    levels = []
    for size in sizes:
        rows = below.reshape(len(statistics), -1, fanout)
        parts = [fold(name, row) for name, row in zip(statistics, rows, strict=True)]
        below = jnp.stack(
            [
                jnp.pad(part, (0, size - part.size), constant_values=EMPTY[name])
                for name, part in zip(statistics, parts, strict=True)
            ]
        )
        levels.append(below.reshape(-1))
    return levels, jnp.stack([fold(name, row) for name, row in zip(statistics, below, strict=True)])


def in_arrays(levels: Sequence[Array], where: Levels) -> tuple[Array, ...]:
    """All levels, each [S * size], in the arrays of a tree."""
    return (*levels[: where.wide], jnp.concatenate(levels[where.wide :]))


def windows(level: Array, start: Array, size: int) -> Array:
    """level [n], start [B] -> [B, size]: stretches of the level, all of which lie in it."""
    return lax.gather(level, start[:, None], _WINDOWS, (size,), mode="promise_in_bounds")


def scatter(kind: str, level: Array, node: Array, value: Array, mode: str = "drop") -> Array:
    """level [n], node [B], value [B] -> [n], setting the nodes or taking the min or max; drops nodes outside of it.

    Not level.at[node], which counts -1 from the end and wants int64 for a level of 2^31.
    """
    return _SCATTER[kind](level, node[:, None], value, _NUMBERS, mode=mode)


def pick(row: Array, mass: Array) -> tuple[Array, Array, Array]:
    """row [B or 1, K], mass [B] -> which child [B] int32, the mass left in it [B], and its entry of the row [B].

    By halves, as `fold` pairs them. The right half is entered where it is positive and the mass reaches it, so that a
    child of 0 never is, unless all are.
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

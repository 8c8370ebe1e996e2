"""Sum, min and max trees in arrays: draw in proportion to values that change all the time.

A node covers `fanout` nodes of the level below, and the leaves hold the values. Writing sets leaves and then computes
each touched parent from its children: nothing drifts, and duplicate indices need no counting. Sums are taken in pairs,
as in a binary tree of which only every log2(fanout)-th level is stored, so that the same leaves give the same bits
whatever the `fanout`. Near the root nothing is stored: a level of few nodes is folded up whenever it is needed.

What is written is made fit for a sum: NaN and negative numbers become 0, numbers below 2^-126 (which hardware may flush
to 0) become 0, and infinity and all above 2^96 become 2^96, of which 2^31 still have a finite sum.

In a loop, write first and sample then, or write at the indices that were sampled: XLA copies a tree that is read before
a write which does not depend on what was read.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit.ops import _tree_nodes as nodes
from rlkit.ops._arrays import check_shapes
from rlkit.ops._tree_check import check as check
from rlkit.ops._tree_nodes import FIELD, STATISTICS
from rlkit.types import Array, Key

_FINE = 4096  # in levels of more nodes a float32 mass has too few bits left to tell them apart


class SegmentTree(flax.struct.PyTreeNode):
    """A tree over `capacity` values. The three statistics share the leaves; one that is not kept is an empty tuple.

    Attributes:
      leaves: [capacity, rounded up] float32, the values, below 0 where `maximum` leaves them out; 0 from capacity on.
      sums, minima, maxima: tuples of float32 arrays, from the parents of the leaves upwards, the root [] last.
    """

    leaves: Array  # [capacity, rounded up]
    sums: tuple[Array, ...]  # each [a fanout-th of the level below, rounded up], the last []
    minima: tuple[Array, ...]  # likewise, over positive values; inf where there are none
    maxima: tuple[Array, ...]  # likewise; 0 where there are none
    capacity: int = flax.struct.field(pytree_node=False)
    fanout: int = flax.struct.field(pytree_node=False)


def init(capacity: int, statistics: Sequence[str] = STATISTICS, fanout: int = nodes.FANOUT) -> SegmentTree:
    """A tree of `capacity` zeros.

    Args:
      capacity: how many leaves, from 1 to 2^31 - 1.
      statistics: which of "sum", "min" and "max" to keep.
      fanout: children of a node, a power of two; it changes the speed alone. On a GPU, where every level costs a few
        kernel launches, more than the default may be faster.

    Returns:
      SegmentTree, of float32 arrays; leaves [capacity, rounded up].

    Raises:
      ValueError: an argument is out of range.
    """
    leaves, *sizes = nodes.level_sizes(capacity, fanout)

    def levels(name: str) -> tuple[Array, ...]:
        return tuple(jnp.full(shape, nodes.EMPTY[name], jnp.float32) for shape in (*sizes, ()))

    return SegmentTree(
        leaves=jnp.zeros(leaves, jnp.float32), capacity=capacity, fanout=fanout, **_fields(statistics, levels)
    )


def build(values: ArrayLike, statistics: Sequence[str] = STATISTICS, fanout: int = nodes.FANOUT) -> SegmentTree:
    """The tree of values [capacity], in one dense pass: bit for bit the one that writing them all gives.

    Args:
      values: [capacity] float.
      statistics, fanout: as in `init`.

    Returns:
      SegmentTree, of float32 arrays; leaves [capacity, rounded up].

    Raises:
      ValueError: `values` does not have one axis, or as in `init`.
    """
    values = _sanitize(values)
    if values.ndim != 1:
        raise ValueError(f"values has shape {values.shape}, expected [capacity]; use jax.vmap for several trees")
    capacity, sizes = values.size, nodes.level_sizes(values.size, fanout)
    leaves = jnp.pad(values, (0, sizes[0] - capacity))

    def levels(name: str) -> tuple[Array, ...]:
        stored = [nodes.from_leaves(name, leaves)]
        for size in sizes[1:]:
            level = nodes.fold(name, stored[-1].reshape(-1, fanout))
            stored.append(jnp.pad(level, (0, size - level.size), constant_values=nodes.EMPTY[name]))
        return (*stored[1:], nodes.root(name, stored[-1], fanout))

    return SegmentTree(leaves=leaves, capacity=capacity, fanout=fanout, **_fields(statistics, levels))


def write(tree: SegmentTree, index: ArrayLike, value: ArrayLike, *, in_maximum: bool = True) -> SegmentTree:
    """The tree with `value` in the leaves at `index`. Where an index comes twice, the largest of its values is kept.

    An index outside [0, capacity), also a negative one, is written nowhere: what is to be dropped can be sent to
    `capacity`. To see such an index, run under `jax.experimental.checkify` with its `index_checks`.

    Args:
      tree: the tree before.
      index: [B] int.
      value: [B] float, made fit for a sum as this module's docstring says.
      in_maximum: False leaves these values out of `maximum` (not of the sum and the minimum) until their leaves are
        written again: one tree can hold priorities of which only some have been measured.

    Raises:
      ValueError: `index` and `value` are not of one shape [B], or `index` is not of integers.
    """
    check_shapes(index=index, value=value)
    value, leaf = _sanitize(value), _inside(index, tree.capacity)
    if leaf.ndim != 1:
        raise ValueError(f"index has shape {leaf.shape}, expected [B]; reshape it, or use jax.vmap for several trees")
    if leaf.size == 0:
        return tree
    if leaf.size == 1:  # of one index XLA would make a slice, fuse it with what reads it, and copy levels for that
        value, leaf = jnp.repeat(value, 2), jnp.repeat(leaf, 2)
    # No root is ever below 0. But in depending on the roots, which depend on all that the write before has read, this
    # write comes after it, so that XLA can change the levels where they lie. It would copy some of them otherwise.
    roots = [levels[-1] for levels in (tree.sums, tree.minima, tree.maxima) if levels]
    leaf = nodes.hold(jnp.where(reduce(jnp.logical_or, [root < 0 for root in roots]), -1, leaf))

    leaves = nodes.scatter("set", tree.leaves, leaf, jnp.zeros_like(value))
    leaves = nodes.scatter(*(("max", leaves, leaf, value) if in_maximum else ("min", leaves, leaf, -value)))
    leaf = jnp.maximum(leaf, 0)  # of what is dropped: to compute a parent again does not change it
    bits = tree.fanout.bit_length() - 1

    def levels(name: str) -> tuple[Array, ...]:
        *stored, _ = getattr(tree, FIELD[name])
        below = leaves if stored else nodes.from_leaves(name, leaves)
        for height, level in enumerate(stored):
            node = leaf >> (bits * (height + 1))
            row = nodes.windows(below, node << bits, tree.fanout)
            row = nodes.from_leaves(name, row) if height == 0 else row
            stored[height] = below = nodes.scatter("set", level, node, nodes.fold(name, row), "promise_in_bounds")
        return (*stored, nodes.root(name, below, tree.fanout))

    kept = [name for name in STATISTICS if getattr(tree, FIELD[name])]
    return tree.replace(leaves=leaves, **_fields(kept, levels))


def total(tree: SegmentTree) -> Array:
    """The sum of the values, [] float32. Raises ValueError where the tree does not keep "sum"."""
    return _kept(tree, "sum", "total")[-1]


def minimum(tree: SegmentTree) -> Array:
    """The smallest of the positive values, [] float32; inf if there are none. Raises ValueError without "min"."""
    return _kept(tree, "min", "minimum")[-1]


def maximum(tree: SegmentTree) -> Array:
    """The largest value written `in_maximum`, [] float32; 0 if there are none. Raises ValueError without "max"."""
    return _kept(tree, "max", "maximum")[-1]


def values(tree: SegmentTree) -> Array:
    """All values, [capacity] float32."""
    return jnp.abs(tree.leaves[: tree.capacity])


def read(tree: SegmentTree, index: ArrayLike) -> Array:
    """The values at `index` [...] int: [...] float32, NaN where it is outside [0, capacity)."""
    leaf = _inside(index, tree.capacity)
    value = nodes.windows(tree.leaves, jnp.maximum(leaf, 0).reshape(-1), 1).reshape(leaf.shape)
    return jnp.where(leaf < 0, jnp.nan, jnp.abs(value))


def find(tree: SegmentTree, mass: ArrayLike) -> Array:
    """The leaf at which the running sum of the values passes `mass`: leaf i holds [sum before i, sum up to i).

    The descent enters only nodes whose sum is positive, so that no rounding leads to an empty leaf: a mass of the total
    or more gives the last leaf that is not empty; one of 0 or less, or NaN, the first. In an empty tree it is leaf 0.

    Args:
      tree: one that keeps "sum".
      mass: [...] float, in [0, total].

    Returns:
      [...] int32 in [0, capacity).

    Raises:
      ValueError: the tree does not keep "sum".
    """
    _kept(tree, "sum", "find")
    mass = jnp.asarray(mass).astype(jnp.float32)
    return _descend(tree, mass.reshape(-1), []).reshape(mass.shape)


def sample(tree: SegmentTree, key: Key, batch_size: int, stratified: bool = True) -> Array:
    """Leaves drawn in proportion to their values (Schaul et al. 2016, section 3.3).

    One float32 number cannot address more than 2^24 leaves. So it only finds one of at most 4,096 nodes, and in every
    level below that a fresh one chooses among the children.

    Args:
      tree: one that keeps "sum". Where all values are 0 the draws are leaf 0, and `total` is 0.
      key: a key.
      batch_size: how many to draw.
      stratified: draw i comes from the i-th of `batch_size` equal parts of the total, as exactly as 4,096 nodes tell.

    Returns:
      [batch_size] int32 in [0, capacity).

    Raises:
      ValueError: the tree does not keep "sum", or `batch_size` is below 1.
    """
    _kept(tree, "sum", "sample")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1; a batch of one is the smallest")
    fine = sum(level.size > _FINE for level in (tree.leaves, *tree.sums))
    words = jax.random.bits(key, (1 + fine, batch_size), jnp.uint32)
    mass, *draws = (words >> 8).astype(jnp.float32) * 2.0**-24
    if stratified:
        mass = (jnp.arange(batch_size, dtype=jnp.float32) + mass) / batch_size
    return _descend(tree, mass * total(tree), draws)


def _fields(statistics: Sequence[str], levels: Callable[[str], tuple[Array, ...]]) -> dict[str, tuple[Array, ...]]:
    if isinstance(statistics, str) or not statistics or not set(statistics) <= set(STATISTICS):
        raise ValueError(f"statistics={statistics!r} must be one or more of {STATISTICS}, such as ('sum', 'min')")
    return {field: levels(name) if name in statistics else () for name, field in FIELD.items()}


def _kept(tree: SegmentTree, name: str, user: str) -> tuple[Array, ...]:
    levels = getattr(tree, FIELD[name])
    if not levels:
        raise ValueError(f"{user} needs a tree that keeps {name!r}; name it in the statistics given to init or build")
    return levels


def _sanitize(value: ArrayLike) -> Array:
    value = jnp.asarray(value).astype(jnp.float32)
    return jnp.where(value >= nodes.SMALLEST, jnp.minimum(value, nodes.LARGEST), 0.0)  # NaN fails the comparison


def _inside(index: ArrayLike, capacity: int) -> Array:
    """The index as int32, and -1 where it is outside [0, capacity)."""
    index = jnp.asarray(index)
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"index has dtype {index.dtype}, expected integers")
    if index.dtype.itemsize < 4:
        index = index.astype(jnp.int32)  # the capacity may not fit in fewer bits
    inside = (index >= 0) & (index <= np.asarray(capacity - 1, index.dtype))
    return jnp.where(inside, index.astype(jnp.int32), -1)


def _descend(tree: SegmentTree, mass: Array, draws: Sequence[Array]) -> Array:
    """mass [B] -> leaf [B] int32. In levels of more than _FINE nodes the draws, [B] in [0, 1), replace the mass."""
    *stored, _ = tree.sums
    levels = [tree.leaves, *stored] if stored else [nodes.from_leaves("sum", tree.leaves)]
    path = [*reversed(nodes.sums_above(levels.pop(), tree.fanout)), *reversed(levels)]
    draws = list(draws)
    bits = tree.fanout.bit_length() - 1
    node, mass = jnp.zeros(mass.shape, jnp.int32), jnp.where(mass > 0, mass, 0.0)
    for depth, level in enumerate(path):
        row = nodes.hold(nodes.windows(level, node << bits, tree.fanout)) if depth else level[None]
        row = jnp.abs(row) if level is tree.leaves else row
        if draws and level.size > _FINE:
            mass = draws.pop() * nodes.fold("sum", row)
        child, mass = nodes.pick(row, mass)
        node, mass = nodes.hold((node << bits) + child), nodes.hold(mass)
    return node

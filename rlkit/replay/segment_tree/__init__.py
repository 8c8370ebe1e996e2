"""Sum, min and max trees in arrays: draw in proportion to values that change all the time.

A node covers `fanout` nodes of the level below, and the leaves hold the values. Writing sets leaves and then computes
each touched parent from its children: nothing drifts, and duplicate indices need no counting. Sums are taken in pairs,
as in a binary tree of which only every log2(fanout)-th level is stored, so that the same leaves give the same bits
whatever the `fanout`. Near the root, what lies above a level of few nodes is computed as a whole.

What is written is made fit for a sum: NaN and negative numbers become 0, numbers below 2^-126 (which hardware may flush
to 0) become 0, and infinity and all above 2^96 become 2^96, of which 2^31 still have a finite sum.

A tree is no function to differentiate: gradients with respect to what is written are zero.

In a loop, write first and sample then, or write at the indices that were sampled: XLA copies a tree that is read before
a write which does not depend on what was read.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit._cpu.primitives import hold
from rlkit._cpu.random_bits import straight
from rlkit.ops._arrays import check_shapes
from rlkit.replay.segment_tree import layout as nodes
from rlkit.replay.segment_tree import traversal as walk
from rlkit.replay.segment_tree.invariants import check as check
from rlkit.replay.segment_tree.layout import STATISTICS, SegmentTree
from rlkit.types import Array, Key


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
    kept = _ordered(statistics)
    where = nodes.levels(capacity, fanout, len(kept))
    empty = np.array([nodes.EMPTY[name] for name in kept], np.float32)
    return SegmentTree(
        leaves=jnp.zeros(where.leaves, jnp.float32),
        nodes=nodes.in_arrays(
            [jnp.repeat(empty, size, total_repeat_length=len(kept) * size) for size in where.sizes], where
        ),
        roots=jnp.asarray(empty),
        capacity=capacity,
        fanout=fanout,
        statistics=kept,
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
    kept = _ordered(statistics)
    where = nodes.levels(values.size, fanout, len(kept))
    leaves = jnp.pad(values, (0, where.leaves - values.size))
    below = jnp.stack([nodes.from_leaves(name, leaves) for name in kept])
    above, roots = nodes.fold_up(below, where.sizes, fanout, kept)
    return SegmentTree(leaves, nodes.in_arrays(above, where), roots, values.size, fanout, kept)


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
    # write comes after it, so that XLA can change the arrays where they lie. It would copy some of them otherwise.
    leaf = hold(jnp.where((tree.roots < 0).any(), -1, leaf))

    leaves = nodes.scatter("set", tree.leaves, leaf, jnp.zeros_like(value))
    leaves = nodes.scatter(*(("max", leaves, leaf, value) if in_maximum else ("min", leaves, leaf, -value)))
    leaf = jnp.maximum(leaf, 0)  # of what is dropped: to compute a parent again does not change it
    return walk.refreshed(tree.replace(leaves=leaves), leaf)


def write_run(tree: SegmentTree, start: ArrayLike, value: ArrayLike, *, in_maximum: bool = True) -> SegmentTree:
    """The tree with `value` in consecutive leaves from `start` on: what `write` makes of them, in fewer steps.

    Args:
      tree: the tree before.
      start: [] int, from 0 to capacity - B; where it lies outside, nothing is written.
      value: [B] float, B at most the capacity, made fit for a sum as this module's docstring says.
      in_maximum: see `write`.

    Raises:
      ValueError: `start` or `value` has other axes, or `start` is not an integer, or B is above the capacity.
    """
    value, first = _sanitize(value), jnp.asarray(start)
    if first.ndim or value.ndim != 1 or value.size > tree.capacity:
        raise ValueError(
            f"start has shape {first.shape} and value {value.shape}, expected [] and [B], B <= {tree.capacity}; use "
            "jax.vmap for several trees"
        )
    first = _inside(first, tree.capacity - value.size + 1)
    if value.size == 0:
        return tree
    first = jnp.where((tree.roots < 0).any(), -1, first)  # to come after the write before, as in `write`
    inside, first = first >= 0, jnp.maximum(first, 0)
    before = hold(jax.lax.dynamic_slice(tree.leaves, (first,), value.shape))
    new = jnp.where(inside, value if in_maximum else -value, before)
    leaves = jax.lax.dynamic_update_slice(tree.leaves, new, (first,))
    return walk.run_refreshed(tree.replace(leaves=leaves), first, value.size)


def total(tree: SegmentTree) -> Array:
    """The sum of the values, [] float32. Raises ValueError where the tree does not keep "sum"."""
    return _root(tree, "sum", "total")


def minimum(tree: SegmentTree) -> Array:
    """The smallest of the positive values, [] float32; inf if there are none. Raises ValueError without "min"."""
    return _root(tree, "min", "minimum")


def maximum(tree: SegmentTree) -> Array:
    """The largest value written `in_maximum`, [] float32; 0 if there are none. Raises ValueError without "max"."""
    return _root(tree, "max", "maximum")


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
    _root(tree, "sum", "find")
    mass = jnp.asarray(mass).astype(jnp.float32)
    return walk.descend(tree, mass.reshape(-1), None)[0].reshape(mass.shape)


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
    return sample_with_values(tree, key, batch_size, stratified)[0]


def sample_with_values(tree: SegmentTree, key: Key, batch_size: int, stratified: bool = True) -> tuple[Array, Array]:
    """The leaves that `sample` draws [batch_size] int32, and their values [batch_size] float32, read on the way."""
    _root(tree, "sum", "sample")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} must be at least 1; a batch of one is the smallest")
    where = nodes.levels_of(tree)
    fine = sum(size > walk.FINE for size in (where.leaves, *where.sizes))
    words = hold(jax.random.bits(straight(key), (1 + fine, batch_size), jnp.uint32))
    draws = (words >> 8).astype(jnp.float32) * 2.0**-24
    mass = draws[0]
    if stratified:
        mass = (jnp.arange(batch_size, dtype=jnp.float32) + mass) / batch_size
    return walk.descend(tree, mass * total(tree), draws[1:])


def _ordered(statistics: Sequence[str]) -> tuple[str, ...]:
    if isinstance(statistics, str) or not statistics or not set(statistics) <= set(STATISTICS):
        raise ValueError(f"statistics={statistics!r} must be one or more of {STATISTICS}, such as ('sum', 'min')")
    return tuple(name for name in STATISTICS if name in statistics)


def _root(tree: SegmentTree, name: str, user: str) -> Array:
    if name not in tree.statistics:
        raise ValueError(f"{user} needs a tree that keeps {name!r}; name it in the statistics given to init or build")
    return tree.roots[tree.statistics.index(name)]


def _sanitize(value: ArrayLike) -> Array:
    value = jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))
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

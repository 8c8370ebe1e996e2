"""Sum, min and max trees in arrays, for draws in proportion to values that change often.

A node covers `fanout` nodes of the level below, and the leaves hold the values. Writing sets leaves and then recomputes
each parent above them from its children: sums do not drift, and duplicate indices need no special case. Sums are taken
in pairs, as in a binary tree of which only every log2(fanout)-th level is stored, so that the same leaves give the same
bits whatever the `fanout`. Near the root, levels of few nodes are recomputed as a whole.

Values are sanitized so that every sum is finite: NaN, negative numbers, and numbers below 2^-126 (which hardware may
flush to 0) become 0; infinity and numbers above 2^96 become 2^96, of which 2^31 still have a finite sum.

Trees are not differentiable: gradients with respect to written values are zero.

In a jitted loop, write before sampling, or write at the indices that were sampled: a write that does not depend on an
earlier read of the same tree costs a copy of it.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit import _cpu
from rlkit.ops._arrays import as_arrays, as_int, check_integers, check_key, check_shapes
from rlkit.replay.segment_tree import layout, traversal
from rlkit.replay.segment_tree.layout import STATISTICS, SegmentTree
from rlkit.types import Array, Key


def init(capacity: int, statistics: Sequence[str] = STATISTICS, fanout: int = layout.FANOUT) -> SegmentTree:
    """Return a tree of `capacity` zeros.

    Args:
      capacity: number of leaves, from 1 to 2^31 - 1.
      statistics: those of "sum", "min" and "max" that the tree keeps.
      fanout: children of a node, a power of two; it changes the speed alone. On a GPU, where every level costs a few
        kernel launches, more than the default may be faster.

    Returns:
      SegmentTree, of float32 arrays; leaves [capacity, rounded up].

    Raises:
      ValueError: an argument is out of range.
    """
    capacity, fanout = as_int("capacity", capacity), as_int("fanout", fanout, 2)
    names = _ordered(statistics)
    levels = layout.levels(capacity, fanout, len(names))
    empty = np.array([layout.EMPTY[name] for name in names], np.float32)
    # broadcast_to, as the indices of jnp.repeat are constants, over which XLA would spend a minute for 2^22 leaves.
    nodes = [jnp.broadcast_to(empty[:, None], (len(names), size)).reshape(-1) for size in levels.sizes]
    return SegmentTree(
        leaves=jnp.zeros(levels.leaves, jnp.float32),
        nodes=layout.in_arrays(nodes, levels),
        roots=jnp.asarray(empty),
        capacity=capacity,
        fanout=fanout,
        statistics=names,
    )


def build(values: ArrayLike, statistics: Sequence[str] = STATISTICS, fanout: int = layout.FANOUT) -> SegmentTree:
    """Return the tree of values [capacity], in one dense pass; the same bits as writing them one by one.

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
    return from_leaves(values, statistics, fanout)


def from_leaves(leaves: Array, statistics: Sequence[str] = STATISTICS, fanout: int = layout.FANOUT) -> SegmentTree:
    """Return the tree of leaves [capacity] float32 of other trees, negated where `maximum` leaves them out.

    Args:
      leaves: [capacity] float32, as `SegmentTree.leaves` holds them, without those from its capacity on.
      statistics, fanout: as in `init`.
    """
    fanout, capacity = as_int("fanout", fanout, 2), leaves.size
    names = _ordered(statistics)
    levels = layout.levels(capacity, fanout, len(names))
    leaves = jnp.pad(leaves, (0, levels.leaves - capacity))
    below = jnp.stack([layout.from_leaves(name, leaves) for name in names])
    above, roots = layout.fold_up(below, levels.sizes, fanout, names)
    return SegmentTree(leaves, layout.in_arrays(above, levels), roots, capacity, fanout, names)


def write(tree: SegmentTree, index: ArrayLike, value: ArrayLike, *, in_maximum: bool = True) -> SegmentTree:
    """Return the tree with `value` in the leaves at `index`. Of several values for one index the largest is written.

    Values at an index outside [0, capacity), also a negative one, are dropped; use `capacity` to drop a value on
    purpose. To catch such indices, run under `jax.experimental.checkify` with its `index_checks`.

    Args:
      tree: the tree before.
      index: [B] int.
      value: [B] float, sanitized as described in this module's docstring.
      in_maximum: False to leave these values out of `maximum` (not of the sum and the minimum) until their leaves are
        written again, such as priorities that have been assigned but not yet measured.

    Raises:
      ValueError: `index` and `value` are not of one shape [B], or `index` is not of integers.
    """
    tree = as_arrays(tree)
    check_shapes(index=index, value=value)
    value, leaf = _sanitize(value), _inside(index, tree.capacity)
    if leaf.ndim != 1:
        raise ValueError(f"index has shape {leaf.shape}, expected [B]; reshape it, or use jax.vmap for several trees")
    if leaf.size == 0:
        return tree
    if leaf.size == 1:  # a write of one index would not happen in place; the same index twice gives the same tree
        value, leaf = jnp.repeat(value, 2), jnp.repeat(leaf, 2)
    leaf = _cpu.materialize(_computed_after(tree, leaf))
    leaves = layout.scatter("set", tree.leaves, leaf, jnp.zeros_like(value))
    leaves = layout.scatter(*(("max", leaves, leaf, value) if in_maximum else ("min", leaves, leaf, -value)))
    leaf = jnp.maximum(leaf, 0)  # for dropped values: recomputing the parents of leaf 0 does not change them
    return traversal.recompute_above(tree.replace(leaves=leaves), leaf)


def write_run(tree: SegmentTree, start: ArrayLike, value: ArrayLike, *, in_maximum: bool = True) -> SegmentTree:
    """Return the tree with `value` in consecutive leaves from `start` on: the result of `write`, in fewer steps.

    Args:
      tree: the tree before.
      start: [] int, from 0 to capacity - B; outside of that, nothing is written.
      value: [B] float, B at most the capacity, sanitized as described in this module's docstring.
      in_maximum: see `write`.

    Raises:
      ValueError: `start` or `value` has other axes, or `start` is not an integer, or B is above the capacity.
    """
    tree = as_arrays(tree)
    value, first = _sanitize(value), jnp.asarray(start)
    if first.ndim or value.ndim != 1 or value.size > tree.capacity:
        raise ValueError(
            f"start has shape {first.shape} and value {value.shape}, expected [] and [B], B <= {tree.capacity}; use "
            "jax.vmap for several trees"
        )
    first = _inside(first, tree.capacity - value.size + 1)
    if value.size == 0:
        return tree
    first = _computed_after(tree, first)
    inside, first = first >= 0, jnp.maximum(first, 0)
    before = _cpu.materialize(jax.lax.dynamic_slice(tree.leaves, (first,), value.shape))
    new = jnp.where(inside, value if in_maximum else -value, before)
    leaves = jax.lax.dynamic_update_slice(tree.leaves, new, (first,))
    return traversal.recompute_above_run(tree.replace(leaves=leaves), first, value.size)


def total(tree: SegmentTree) -> Array:
    """Sum of the values, [] float32. Raises ValueError where the tree does not keep "sum"."""
    return _root(tree, "sum", "total")


def minimum(tree: SegmentTree) -> Array:
    """Smallest positive value, [] float32; inf if there is none. Raises ValueError where it does not keep "min"."""
    return _root(tree, "min", "minimum")


def maximum(tree: SegmentTree) -> Array:
    """Largest value written with `in_maximum`, [] float32, or 0. Raises ValueError where it does not keep "max"."""
    return _root(tree, "max", "maximum")


def values(tree: SegmentTree) -> Array:
    """All values, [capacity] float32."""
    return jnp.abs(tree.leaves[: tree.capacity])


def read(tree: SegmentTree, index: ArrayLike) -> Array:
    """Read the values at `index` [...] int: [...] float32, NaN where it is outside [0, capacity)."""
    tree = as_arrays(tree)
    leaf = _inside(index, tree.capacity)
    value = layout.windows(tree.leaves, jnp.maximum(leaf, 0).reshape(-1), 1).reshape(leaf.shape)
    return jnp.where(leaf < 0, jnp.nan, jnp.abs(value))


def find(tree: SegmentTree, mass: ArrayLike) -> Array:
    """Find the leaf at which the running sum of the values passes `mass`: leaf i covers [sum before i, sum up to i).

    The descent enters only nodes of a positive sum, so that rounding never leads to a leaf of 0: a mass of the total or
    more gives the last positive leaf; one of 0 or less, or NaN, the first. In a tree of zeros it is leaf 0.

    Args:
      tree: one that keeps "sum".
      mass: [...] float, in [0, total].

    Returns:
      [...] int32 in [0, capacity).

    Raises:
      ValueError: the tree does not keep "sum".
    """
    tree = as_arrays(tree)
    _root(tree, "sum", "find")
    mass = jnp.asarray(mass).astype(jnp.float32)
    return traversal.descend(tree, mass.reshape(-1), None)[0].reshape(mass.shape)


def sample(tree: SegmentTree, key: Key, batch_size: int, stratified: bool = True) -> Array:
    """Draw leaves in proportion to their values (Schaul et al. 2016, section 3.3).

    One float32 number cannot address more than 2^24 leaves. So it chooses one of at most 4,096 nodes, and in every
    level below a new random number chooses among the children.

    Args:
      tree: one that keeps "sum". Where all values are 0 the draws are leaf 0, and `total` is 0.
      key: a key.
      batch_size: number of draws.
      stratified: True to take draw i from the i-th of `batch_size` equal parts of the total, to the resolution of the
        4,096 nodes.

    Returns:
      [batch_size] int32 in [0, capacity).

    Raises:
      ValueError: the tree does not keep "sum", `batch_size` is below 1, or `key` is not a key.
    """
    return sample_with_values(tree, key, batch_size, stratified)[0]


def sample_with_values(tree: SegmentTree, key: Key, batch_size: int, stratified: bool = True) -> tuple[Array, Array]:
    """Draw leaves as `sample` does, and return them, [batch_size] int32, with their values, [batch_size] float32."""
    tree = as_arrays(tree)
    _root(tree, "sum", "sample")
    check_key(key)
    batch_size = as_int("batch_size", batch_size)
    levels = layout.levels_of(tree)
    num_fine = sum(size > traversal.MAX_NODES_BY_MASS for size in (levels.leaves, *levels.sizes))
    words = _cpu.materialize(jax.random.bits(key, (1 + num_fine, batch_size), jnp.uint32))
    draws = (words >> 8).astype(jnp.float32) * 2.0**-24
    mass = draws[0]
    if stratified:
        mass = (jnp.arange(batch_size, dtype=jnp.float32) + mass) / batch_size
    return traversal.descend(tree, mass * total(tree), draws[1:])


def _computed_after(tree: SegmentTree, index: Array) -> Array:
    """Return an index unchanged, computed after the roots, and so after all that the previous write has read."""
    # A write can then happen in place. No root is negative, so the condition never holds.
    return jnp.where((tree.roots < 0).any(), -1, index)


def _ordered(statistics: Sequence[str]) -> tuple[str, ...]:
    if isinstance(statistics, str) or not statistics or not set(statistics) <= set(STATISTICS):
        raise ValueError(f"statistics={statistics!r} must be one or more of {STATISTICS}, such as ('sum', 'min')")
    return tuple(name for name in STATISTICS if name in statistics)


def _root(tree: SegmentTree, name: str, caller: str) -> Array:
    if name not in tree.statistics:
        raise ValueError(f"{caller} needs a tree that keeps {name!r}; name it in the statistics given to init or build")
    return tree.roots[tree.statistics.index(name)]


def _sanitize(value: ArrayLike) -> Array:
    value = jax.lax.stop_gradient(jnp.asarray(value).astype(jnp.float32))
    return jnp.where(value >= layout.SMALLEST, jnp.minimum(value, layout.LARGEST), 0.0)  # NaN fails the comparison


def _inside(index: ArrayLike, capacity: int) -> Array:
    """Return the index as int32, -1 where it is outside [0, capacity)."""
    index = jnp.asarray(index)
    check_integers(index=index)
    if index.dtype.itemsize < 4:
        index = index.astype(jnp.int32)  # the capacity may not fit in fewer bits
    inside = (index >= 0) & (index <= np.asarray(capacity - 1, index.dtype))
    return jnp.where(inside, index.astype(jnp.int32), -1)

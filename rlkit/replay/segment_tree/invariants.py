"""What must hold of a segment tree, for tests and for what was loaded from a file."""

import jax
import numpy as np
from jax.core import Tracer

from rlkit.ops._arrays import check_shape
from rlkit.replay.segment_tree import layout as nodes
from rlkit.replay.segment_tree.layout import SegmentTree


def check(tree: SegmentTree) -> None:
    """Raise ValueError, naming level and node, unless each leaf is legal and each parent just what its children make.

    It reads the whole tree, outside of jit. Level 0 is that of the leaves.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError("check reads values: call it outside of jit, vmap and scan")
    where, num = nodes.levels_of(tree), len(tree.statistics)
    leaves = np.asarray(tree.leaves)
    check_shape("leaves", leaves, (where.leaves,))
    size = np.abs(leaves)
    legal = (leaves == 0) | ((size >= nodes.SMALLEST) & (size <= nodes.LARGEST))
    legal[tree.capacity :] &= leaves[tree.capacity :] == 0
    _report("leaves", 0, legal, leaves, "0 or within [2^-126, 2^96], and 0 beyond the capacity")
    for i, (array, length) in enumerate(zip(tree.nodes, where.arrays(num), strict=True)):
        check_shape(f"nodes[{i}]", array, (length,))
    check_shape("roots", tree.roots, (num,))
    for i, name in enumerate(tree.statistics):
        below = np.asarray(nodes.from_leaves(name, tree.leaves))
        for height, (start, size) in enumerate(zip(where.starts, where.sizes, strict=True)):
            level = np.asarray(tree.nodes[min(height, where.wide)])[start + i * size :][:size]
            parents = _fold(name, below.reshape(-1, tree.fanout))
            expected = np.pad(parents, (0, size - len(parents)), constant_values=nodes.EMPTY[name])
            _report(name, height + 1, level == expected, level, "what its children make")
            below = level
        root = np.asarray(tree.roots)[i : i + 1]
        _report(name, len(where.sizes) + 1, root == _fold(name, below[None]), root, "what its children make")


def _fold(name: str, rows: np.ndarray) -> np.ndarray:
    """[n, a power of two] -> [n]."""
    while rows.shape[1] > 1:
        rows = np.asarray(nodes.PAIR[name](rows[:, 0::2], rows[:, 1::2]))
    return rows[:, 0]


def _report(field: str, height: int, legal: np.ndarray, level: np.ndarray, rule: str) -> None:
    if not legal.all():
        node = int(np.argmin(legal))
        raise ValueError(
            f"the segment tree is broken: level {height}, node {node} of {field}, {level[node]}, is not {rule}"
        )

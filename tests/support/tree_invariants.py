"""What every segment tree holds."""

import jax
import numpy as np
from jax.core import Tracer

from rlkit.ops._arrays import check_shape
from rlkit.replay.segment_tree import layout
from rlkit.replay.segment_tree.layout import SegmentTree


def check_tree(tree: SegmentTree) -> None:
    """Raise ValueError, naming level and node, unless each leaf is legal and each parent is that of its children.

    It reads the whole tree, outside of jit. Level 0 is that of the leaves.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError("check reads values: call it outside of jit, vmap and scan")
    levels, num = layout.levels_of(tree), len(tree.statistics)
    leaves = np.asarray(tree.leaves)
    check_shape("leaves", leaves, (levels.leaves,))
    size = np.abs(leaves)
    legal = (leaves == 0) | ((size >= layout.SMALLEST) & (size <= layout.LARGEST))
    legal[tree.capacity :] &= leaves[tree.capacity :] == 0
    _require("leaves", 0, legal, leaves, "0 or within [2^-126, 2^96], and 0 beyond the capacity")
    for i, (array, length) in enumerate(zip(tree.nodes, levels.arrays(num), strict=True)):
        check_shape(f"nodes[{i}]", array, (length,))
    check_shape("roots", tree.roots, (num,))
    for i, name in enumerate(tree.statistics):
        below = np.asarray(layout.from_leaves(name, tree.leaves))
        rule = f"the {name} of its children"
        for height, (start, size) in enumerate(zip(levels.starts, levels.sizes, strict=True)):
            level = np.asarray(tree.nodes[min(height, levels.num_own)])[start + i * size :][:size]
            parents = _fold(name, below.reshape(-1, tree.fanout))
            expected = np.pad(parents, (0, size - len(parents)), constant_values=layout.EMPTY[name])
            _require(name, height + 1, level == expected, level, rule)
            below = level
        root = np.asarray(tree.roots)[i : i + 1]
        _require(name, len(levels.sizes) + 1, root == _fold(name, below[None]), root, rule)


def _fold(name: str, rows: np.ndarray) -> np.ndarray:
    """Combine children [n, a power of two] into parents [n]."""
    while rows.shape[1] > 1:
        rows = np.asarray(layout.PAIR[name](rows[:, 0::2], rows[:, 1::2]))
    return rows[:, 0]


def _require(field: str, height: int, legal: np.ndarray, level: np.ndarray, rule: str) -> None:
    if not legal.all():
        node = int(np.argmin(legal))
        raise ValueError(
            f"the segment tree is broken: level {height}, node {node} of {field}, {level[node]}, is not {rule}"
        )

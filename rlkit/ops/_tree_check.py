"""What must hold of a segment tree, for tests and for what was loaded from a file."""

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.core import Tracer

from rlkit.ops import _tree_nodes as nodes
from rlkit.ops._arrays import check_shape

if TYPE_CHECKING:
    from rlkit.ops.segment_tree import SegmentTree


def check(tree: "SegmentTree") -> None:
    """Raise ValueError, naming level and node, unless each leaf is legal and each parent just what its children make.

    It reads the whole tree, outside of jit. Level 0 is that of the leaves.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree)):
        raise ValueError("check reads values: call it outside of jit, vmap and scan")
    sizes = nodes.level_sizes(tree.capacity, tree.fanout)
    leaves = np.asarray(tree.leaves)
    check_shape("leaves", leaves, sizes[:1])
    size = np.abs(leaves)
    legal = (leaves == 0) | ((size >= nodes.SMALLEST) & (size <= nodes.LARGEST))
    legal[tree.capacity :] &= leaves[tree.capacity :] == 0
    _report("leaves", 0, legal, leaves, "0 or within [2^-126, 2^96], and 0 beyond the capacity")
    for name, field in nodes.FIELD.items():
        below = np.asarray(nodes.from_leaves(name, tree.leaves))
        for height, level in enumerate(map(np.asarray, getattr(tree, field)), start=1):
            check_shape(f"{field}[{height - 1}]", level, sizes[height : height + 1])
            expected = below.reshape(-1, tree.fanout) if level.ndim else below[None]
            while expected.shape[1] > 1:
                expected = np.asarray(nodes.PAIR[name](expected[:, 0::2], expected[:, 1::2]))
            padding = (0, level.size - len(expected))
            expected = np.pad(expected[:, 0], padding, constant_values=nodes.EMPTY[name])
            _report(field, height, level.reshape(-1) == expected, level.reshape(-1), "what its children make")
            below = level


def _report(field: str, height: int, legal: np.ndarray, level: np.ndarray, rule: str) -> None:
    if not legal.all():
        node = int(np.argmin(legal))
        raise ValueError(
            f"the segment tree is broken: level {height}, node {node} of {field}, {level[node]}, is not {rule}"
        )

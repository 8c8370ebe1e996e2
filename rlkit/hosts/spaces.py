"""From a description of a Gymnasium space to the space of rlkit that holds the same values."""

import numpy as np

from rlkit.hosts.worker.contract import Leaf, Tree
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple


def space(tree: Tree) -> Space:
    """The space of rlkit that holds the values of a tree of leaves."""
    if isinstance(tree, dict):
        return Dict({name: space(child) for name, child in tree.items()})
    if isinstance(tree, tuple):
        return Tuple(tuple(space(child) for child in tree))
    assert isinstance(tree, Leaf)
    if tree.discrete:
        sizes = (tree.high.astype(np.int64) - tree.low + 1).tolist()
        return MultiDiscrete(tuple(sizes)) if tree.shape else Discrete(sizes)
    low, high = tree.low, tree.high
    if tree.native != tree.stored:
        limits = np.iinfo if tree.stored.kind in "iu" else np.finfo if tree.stored.kind == "f" else None
        if limits is not None:
            info = limits(tree.stored)
            inside = (np.where(np.isinf(x), x, np.clip(x, info.min, info.max)) for x in (low, high))
            low, high = inside
    return Box(low, high, tree.shape, tree.stored)

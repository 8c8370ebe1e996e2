"""Conversion of a Gymnasium space's description to the space of rlkit that holds the same values."""

import numpy as np

from rlkit.hosts.worker.contract import Leaf, SpaceTree
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import PyTree


def space(tree: SpaceTree) -> Space:
    """Return the space of rlkit that holds the values of a tree of leaves."""
    if isinstance(tree, dict):
        return Dict({name: space(child) for name, child in tree.items()})
    if isinstance(tree, tuple):
        return Tuple(tuple(space(child) for child in tree))
    assert isinstance(tree, Leaf)
    if tree.discrete:
        sizes = (tree.high.astype(np.int64) - tree.low + 1).tolist()
        return MultiDiscrete(tuple(sizes)) if tree.shape else Discrete(sizes)
    low, high = tree.low, tree.high
    if tree.native_dtype != tree.stored_dtype:
        kind = tree.stored_dtype.kind
        limits = np.iinfo if kind in "iu" else np.finfo if kind == "f" else None
        if limits is not None:
            info = limits(tree.stored_dtype)
            low, high = (np.where(np.isinf(x), x, np.clip(x, info.min, info.max)) for x in (low, high))
    return Box(low, high, tree.shape, tree.stored_dtype)


def starts(tree: SpaceTree) -> PyTree:
    """Return the least integer of each Discrete or MultiDiscrete leaf, and 0 for others, in the tree's structure."""
    if isinstance(tree, dict):
        return {name: starts(child) for name, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(starts(child) for child in tree)
    assert isinstance(tree, Leaf)
    if not tree.discrete:
        return 0
    return np.asarray(tree.low, np.int64) if tree.shape else int(tree.low)

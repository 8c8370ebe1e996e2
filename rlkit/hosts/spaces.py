"""Conversion of a Gymnasium space's description to the space of rlkit that holds the same values."""

from typing import Any

import numpy as np

from rlkit.hosts.worker.contract import Leaf, SpaceTree
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import ConfigError, PyTree


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


def as_actions(leaf: Leaf, actions: Any, num_envs: int) -> np.ndarray:
    """Return a leaf [N, *shape] of the actions of `space` as an array of NumPy.

    Raises:
      ConfigError: it has another shape, or is not of integers from 0 to the largest of a discrete space.
    """
    actions, shape = np.asarray(actions), (num_envs, *leaf.shape)
    name = f"actions{leaf.path}"
    if actions.shape != shape:
        raise ConfigError(
            f"{name} must be one for each of num_envs={num_envs} environments, {list(shape)}, got {list(actions.shape)}"
        )
    if not leaf.discrete:
        return actions
    if not np.issubdtype(actions.dtype, np.integer):
        raise ConfigError(f"{name} must be integers, got {actions.dtype}; sample one, or take the argmax of scores")
    most = leaf.high.astype(np.int64) - leaf.low
    if (outside := (actions < 0) | (actions > most)).any():
        raise ConfigError(f"{name} must be in 0 ... {most.tolist()}, got {actions[outside][0]}; they count from 0")
    return actions

"""One stretch of memory for what environments and their pool say to each other: arrays side by side, no copies."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker import contract
from rlkit.hosts.worker.contract import Tree

_ALIGNMENT = 64  # a cache line, so that two processes do not write to the same one more than they must


class Layout(NamedTuple):
    """What is where: plain data, which a worker process is sent."""

    num_envs: int
    obs: Tree
    action: Tree
    entries: tuple[tuple[str, tuple[int, ...], str, int], ...]  # shape and dtype of each array, and where it begins
    size: int  # bytes in all


class Views(NamedTuple):
    """The arrays, each [N, ...] over all environments."""

    obs: list[np.ndarray]  # of the observation's leaves: what the next action is taken on
    final: list[np.ndarray]  # the last observation of the episode that ended with this step
    action: list[np.ndarray]
    reward: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    seed: np.ndarray  # int64, with which the next reset begins


def layout(num_envs: int, obs: Tree, action: Tree) -> Layout:
    """Room for `num_envs` environments with these spaces."""
    wanted: list[tuple[str, tuple[int, ...], str]] = []
    for name, tree in (("obs", obs), ("final", obs), ("action", action)):
        wanted += [(name, leaf.shape, leaf.stored.str) for leaf in contract.leaves(tree)]
    wanted += [("reward", (), "<f4"), ("terminated", (), "|b1"), ("truncated", (), "|b1"), ("seed", (), "<i8")]
    entries, size = [], 0
    for name, shape, dtype in wanted:
        entries.append((name, (num_envs, *shape), dtype, size))
        size += -(-int(np.prod((num_envs, *shape))) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return Layout(num_envs, obs, action, tuple(entries), max(size, 1))


def views(plan: Layout, memory: Any) -> Views:
    """The arrays in a writable buffer of `plan.size` bytes."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in Views._fields}
    for name, shape, dtype, offset in plan.entries:
        found[name].append(np.ndarray(shape, dtype, memory, offset))
    trees = ("obs", "final", "action")
    fields: dict[str, Any] = {name: arrays if name in trees else arrays[0] for name, arrays in found.items()}
    return Views(**fields)


def rows(arrays: Sequence[np.ndarray], first: int, count: int) -> list[np.ndarray]:
    """The part of each array that belongs to `count` environments."""
    return [array[first : first + count] for array in arrays]

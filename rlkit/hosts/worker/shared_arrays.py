"""Arrays that a pool and its workers share without copies: side by side in one stretch of memory."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker import contract
from rlkit.hosts.worker.contract import SpaceTree

_ALIGNMENT = 64  # a cache line, so that two processes write to the same line as rarely as possible


class Layout(NamedTuple):
    """Positions of the arrays in the shared memory; plain data, which is sent to worker processes."""

    entries: tuple[tuple[str, tuple[int, ...], str, int], ...]  # name, shape, dtype and byte offset of each array
    num_bytes: int


class Views(NamedTuple):
    """The shared arrays, each [N, ...] over all environments."""

    obs: list[np.ndarray]  # one per leaf: the observations for the next actions
    final: list[np.ndarray]  # one per leaf: the last observation of the episode that ended with this step
    action: list[np.ndarray]  # one per leaf
    reward: np.ndarray  # float32, that is learned from
    own_reward: np.ndarray  # float64, the environment's own; see `own_rewards`
    own_done: np.ndarray  # bool, where an episode ended: whether it is one of the environment's own
    success: np.ndarray  # float32, where an episode ended: 1 if it was a success, else 0; NaN if that is not known
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    seed: np.ndarray  # int64, the seeds of the next reset
    inspect: np.ndarray  # uint8, above 0 while `native` is written too; 2 and 3: see `Pool.mask_source`
    native: list[np.ndarray]  # one per leaf of float64: `obs` before it is rounded to float32


def make_layout(num_envs: int, obs: SpaceTree, action: SpaceTree) -> Layout:
    """Return the layout for `num_envs` environments with these spaces."""
    arrays: list[tuple[str, tuple[int, ...], str]] = []
    for name, tree in (("obs", obs), ("final", obs), ("action", action)):
        arrays += [(name, leaf.shape, leaf.stored_dtype.str) for leaf in contract.leaves(tree)]
    arrays += [("native", leaf.shape, "<f8") for leaf in contract.wide_leaves(obs)]
    arrays += [("reward", (), "<f4"), ("own_reward", (), "<f8"), ("own_done", (), "|b1"), ("success", (), "<f4")]
    arrays += [("terminated", (), "|b1"), ("truncated", (), "|b1"), ("seed", (), "<i8"), ("inspect", (), "|u1")]
    entries, offset = [], 0
    for name, shape, dtype in arrays:
        entries.append((name, (num_envs, *shape), dtype, offset))
        offset += -(-int(np.prod((num_envs, *shape))) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return Layout(tuple(entries), max(offset, 1))


def make_views(layout: Layout, buffer: Any) -> Views:
    """Return the arrays in a writable buffer of `layout.num_bytes` bytes."""
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in Views._fields}
    for name, shape, dtype, offset in layout.entries:
        arrays[name].append(np.ndarray(shape, dtype, buffer, offset))
    trees = ("obs", "final", "action", "native")
    fields: dict[str, Any] = {name: leaves if name in trees else leaves[0] for name, leaves in arrays.items()}
    return Views(**fields)


def rows(arrays: Sequence[np.ndarray], first: int, count: int) -> list[np.ndarray]:
    """Return the rows first ... first + count - 1 of each array."""
    return [array[first : first + count] for array in arrays]

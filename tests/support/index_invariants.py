"""What every slice index holds."""

import jax
import numpy as np
from jax.core import Tracer

from rlkit.replay.slice_index.row_queue import RowQueue
from rlkit.replay.slice_index.state import SliceIndex


def check_index(state: SliceIndex) -> None:
    """Raise ValueError, naming the rule, unless the index [R, N] is one that `init` and `add` can give.

    It reads the whole index, outside of jit.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(state)):
        raise ValueError("check reads values: call it outside of jit, vmap and scan")
    head_slot, rows = int(state.ring.slot), int(state.ring.rows)
    _rule(rows <= state.num_rows, f"rows={rows} is at most num_rows={state.num_rows}")
    _rule(head_slot < state.num_rows, f"slot={head_slot} is below num_rows={state.num_rows}")
    _rule(rows in (head_slot, state.num_rows), f"slot={head_slot} is rows={rows} in a ring that was never full")
    age = np.asarray(0 if state.age is None else state.age, np.int64)
    _rule(np.all(age <= rows), "an unfinished episode is no longer than what is stored, in `age`")
    if state.starts is not None:
        row, items = _queued_items(state, state.starts, "starts")
        if state.sampling == "slice":
            _check_starts(state, row, items, age)
    if state.episodes is not None:
        _check_episodes(state, *_queued_items(state, state.episodes, "episodes"), age)
    elif state.ended is not None:
        _rule(state.ended.shape == (state.num_rows, state.num_envs), "`ended` is [R, N]")


def _rule(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise ValueError(f"the slice index is broken: it does not hold that {rule}")


def _queued_items(state: SliceIndex, queue: RowQueue, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Stored row, 0 for the oldest, with which each item arrived, and the items; both in the order of the queue."""
    rows, span, wrap = int(state.ring.rows), state.span, 2 * queue.capacity
    head, tail = int(queue.head), int(queue.tail)
    count = (head - tail) % wrap
    _rule(max(head, tail) < wrap, f"positions are below twice the capacity, in `{name}`")
    _rule(count <= queue.capacity, f"{count} items fit the capacity {queue.capacity}, in `{name}`")
    slots = (int(state.ring.slot) - rows + np.arange(span - 1, rows)) % state.num_rows
    begin = (np.asarray(queue.before)[slots].astype(np.int64) - tail) % wrap
    _rule(np.all(np.diff([*begin, count]) >= 0), f"each row's items come after those of the row before, in `{name}`")
    _rule(
        begin[0] == 0 if len(begin) else count == 0, f"the first row that can bring an item has the tail, in `{name}`"
    )
    row = span - 1 + np.repeat(np.arange(len(begin)), np.diff([*begin, count]))
    index = (tail + np.arange(count)) % queue.capacity
    return row, [np.asarray(leaf)[index].astype(np.int64) for leaf in jax.tree.leaves(queue.items)]


def _envs_of(state: SliceIndex, index: np.ndarray, row: np.ndarray, name: str) -> np.ndarray:
    """Environments of flat indices, which must lie in the given stored rows, in order."""
    slot, env = np.divmod(index, state.num_envs)
    expected = (int(state.ring.slot) - int(state.ring.rows) + row) % state.num_rows
    _rule(np.array_equal(slot, expected), f"each step lies in the row of its position, in `{name}`")
    same_row = np.diff(row) == 0
    _rule(np.all(np.diff(env)[same_row] > 0), f"the environments of one row are in order, in `{name}`")
    return env


def _check_starts(state: SliceIndex, row: np.ndarray, items: list[np.ndarray], age: np.ndarray) -> None:
    """Check that consecutive slices of an environment begin one row apart, or L rows or more, in another episode."""
    rows, span = int(state.ring.rows), state.span
    env = _envs_of(state, items[0], row - (span - 1), "starts")
    order = np.lexsort((row, env))
    row, env = row[order], env[order]
    gap = np.diff(row)[np.diff(env) == 0]
    _rule(np.all((gap == 1) | (gap >= span)), "no slice spans the end of an episode, in `starts`")
    # The slices that end in an unfinished episode are those that begin there.
    expected = np.clip(age - span + 1, 0, None)
    for inside in (row, row - (span - 1)):
        counts = np.bincount(env[inside >= rows - age[env]], minlength=state.num_envs)
        _rule(np.array_equal(counts, expected), "unfinished episodes have the slices that `age` allows, in `starts`")


def _check_episodes(state: SliceIndex, row: np.ndarray, items: list[np.ndarray], age: np.ndarray) -> None:
    """Check that episodes of one environment follow each other, and that their slices are as many as counted."""
    rows, span = int(state.ring.rows), state.span
    env, length = _envs_of(state, items[0], row, "episodes"), items[1]
    in_range = (length >= span) & (length <= state.num_rows)
    _rule(np.all(in_range), "episodes have a slice, and at most num_rows steps, in `episodes`")
    order = np.lexsort((row, env))
    before_next = np.diff(row[order]) >= length[order][1:]
    _rule(np.all(before_next | (np.diff(env[order]) > 0)), "episodes do not overlap, in `episodes`")
    _rule(np.all(row < rows - age[env]), "an unfinished episode comes after the finished, in `episodes`")
    stored = np.minimum(length, row + 1)
    unfinished = age[age >= span]
    slices = int(np.sum(stored - span + 1) + np.sum(unfinished - span + 1))
    if state.starts is not None:
        count = (int(state.starts.head) - int(state.starts.tail)) % (2 * state.starts.capacity)
        _rule(slices == count, f"the episodes' {slices} slices are the {count} that are counted")
    if state.ended is not None:
        slots = (int(state.ring.slot) - rows + np.arange(rows)) % state.num_rows
        ended = np.zeros((rows, state.num_envs), bool)
        ended[row, env] = True
        _rule(np.array_equal(np.asarray(state.ended)[slots], ended), "`ended` marks the ends of the finished episodes")

"""What must hold of a slice index: of its settings, and of one that was loaded from a file."""

import jax
import numpy as np
from jax.core import Tracer

from rlkit.replay.slice_index.row_queue import RowQueue
from rlkit.replay.slice_index.state import SliceIndex

LAWS = ("slice", "episode")


def check_settings(num_rows: int, num_envs: int, slice_len: int, cross_episodes: bool, law: str) -> None:
    """Raise ValueError, naming the setting, for a ring [R, N] or a law that cannot be."""
    for name, value in {"num_rows": num_rows, "num_envs": num_envs, "slice_len": slice_len}.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if num_rows * num_envs >= 2**31:
        raise ValueError(f"num_rows * num_envs = {num_rows * num_envs} must be below 2^31; use several rings")
    if slice_len > num_rows:
        raise ValueError(f"slice_len={slice_len} must be at most num_rows={num_rows}; make the ring longer")
    if law not in LAWS:
        raise ValueError(f"law={law!r} must be one of {', '.join(map(repr, LAWS))}")
    if law == "episode" and cross_episodes:
        raise ValueError("law='episode' needs cross_episodes=False: such slices belong to no episode; use law='slice'")


def check(state: SliceIndex) -> None:
    """Raise ValueError, naming the rule, unless the index [R, N] is one that `init` and `add` can have made.

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
        row, items = _live(state, state.starts, "starts")
        if state.law == "slice":
            _check_starts(state, row, items, age)
    if state.episodes is not None:
        _check_episodes(state, *_live(state, state.episodes, "episodes"), age)
    elif state.ended is not None:
        _rule(state.ended.shape == (state.num_rows, state.num_envs), "`ended` is [R, N]")


def _rule(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise ValueError(f"the slice index is broken: it does not hold that {rule}")


def _live(state: SliceIndex, queue: RowQueue, name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Which stored row, 0 for the oldest, brought each living item, and the items; both in the order of the queue."""
    rows, span, wrap = int(state.ring.rows), state.span, 2 * queue.capacity
    head, tail = int(queue.head), int(queue.tail)
    count = (head - tail) % wrap
    _rule(max(head, tail) < wrap, f"positions are below twice the capacity, in `{name}`")
    _rule(count <= queue.capacity, f"{count} living items fit the capacity {queue.capacity}, in `{name}`")
    slots = (int(state.ring.slot) - rows + np.arange(span - 1, rows)) % state.num_rows
    begin = (np.asarray(queue.before)[slots].astype(np.int64) - tail) % wrap
    _rule(np.all(np.diff([*begin, count]) >= 0), f"each row's items come after those of the row before, in `{name}`")
    _rule(
        begin[0] == 0 if len(begin) else count == 0, f"the first row that can bring an item has the tail, in `{name}`"
    )
    row = span - 1 + np.repeat(np.arange(len(begin)), np.diff([*begin, count]))
    places = (tail + np.arange(count)) % queue.capacity
    return row, [np.asarray(leaf)[places].astype(np.int64) for leaf in jax.tree.leaves(queue.items)]


def _steps(state: SliceIndex, steps: np.ndarray, row: np.ndarray, name: str) -> np.ndarray:
    """The environments of steps that should lie in those stored rows, in order."""
    slot, env = np.divmod(steps, state.num_envs)
    expected = (int(state.ring.slot) - int(state.ring.rows) + row) % state.num_rows
    _rule(np.array_equal(slot, expected), f"each step lies in the row that its place says, in `{name}`")
    same_row = np.diff(row) == 0
    _rule(np.all(np.diff(env)[same_row] > 0), f"the environments of one row are in order, in `{name}`")
    return env


def _check_starts(state: SliceIndex, row: np.ndarray, items: list[np.ndarray], age: np.ndarray) -> None:
    """Slices that follow each other in one environment do so at once, or have a whole new episode's start between."""
    rows, span = int(state.ring.rows), state.span
    env = _steps(state, items[0], row - (span - 1), "starts")
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
    """Episodes of one environment follow each other, and their slices are as many as are counted."""
    rows, span = int(state.ring.rows), state.span
    env, length = _steps(state, items[0], row, "episodes"), items[1]
    in_range = (length >= span) & (length <= state.num_rows)
    _rule(np.all(in_range), "episodes have a slice, and are cut at num_rows, in `episodes`")
    order = np.lexsort((row, env))
    before_next = np.diff(row[order]) >= length[order][1:]
    _rule(np.all(before_next | (np.diff(env[order]) > 0)), "episodes do not overlap, in `episodes`")
    _rule(np.all(row < rows - age[env]), "an unfinished episode comes after the finished, in `episodes`")
    stored = np.minimum(length, row + 1)
    open_ = age[age >= span]
    slices = int(np.sum(stored - span + 1) + np.sum(open_ - span + 1))
    if state.starts is not None:
        count = (int(state.starts.head) - int(state.starts.tail)) % (2 * state.starts.capacity)
        _rule(slices == count, f"the episodes' {slices} slices are the {count} that are counted")
    if state.ended is not None:
        slots = (int(state.ring.slot) - rows + np.arange(rows)) % state.num_rows
        ended = np.zeros((rows, state.num_envs), bool)
        ended[row, env] = True
        _rule(np.array_equal(np.asarray(state.ended)[slots], ended), "`ended` marks the ends of the finished episodes")

"""Data for every library of run.py, in NumPy, and the loop that times calls from Python."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
EPISODE = 200  # the mean length of an episode; lengths are geometric
CHUNK = 2**14  # steps at a time while a prioritized buffer is filled
SLICES_CHUNK = 2**20  # likewise, of slices
POOL = 8  # chunks that are repeated to fill a buffer of slices


class Case(Protocol):
    """A full buffer of one library."""

    modes: dict[str, Callable[[int], dict[str, float]]]  # "jit", "python": seed -> seconds a cycle, by operation

    def check(self) -> dict[str, Any]: ...


class Operations(NamedTuple):
    """A buffer as called from Python; each call returns when its work is complete."""

    add: Callable[[Any], None]
    sample: Callable[[Any], Any]  # key -> first argument of update
    update: Callable[[Any, Any], None] | None  # None where there are no priorities


def transitions(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Steps [*shape, ...] of 42 bytes each."""
    return {
        "obs": rng.standard_normal((*shape, 4), np.float32),
        "action": rng.integers(0, 2, shape, np.int32),
        "reward": rng.standard_normal(shape, np.float32),
        "terminated": rng.random(shape, np.float32) < 1 / EPISODE,
        "truncated": np.zeros(shape, bool),
        "next_obs": rng.standard_normal((*shape, 4), np.float32),
    }


def bytes_of_steps(rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Steps [*shape] of four bytes each, episodes of EPISODE steps on average."""
    return {
        "obs": rng.integers(0, 256, shape, np.uint8),
        "reward": np.zeros(shape, np.uint8),
        "terminated": rng.random(shape, np.float32) < 1 / EPISODE,
        "truncated": np.zeros(shape, bool),
    }


def distinct(rng: np.random.Generator, capacity: int) -> np.ndarray:
    """[capacity] float32 in (0, 1], all different up to 2^24 of them."""
    return ((rng.permutation(capacity) + 1) / capacity).astype(np.float32)


def filling(rng: np.random.Generator, capacity: int) -> Iterator[tuple[slice, dict[str, np.ndarray], np.ndarray]]:
    """Yield chunks that fill a buffer: their places, steps [n, ...] and priorities [n]."""
    priority = distinct(rng, capacity)
    for start in range(0, capacity, CHUNK):
        places = slice(start, min(start + CHUNK, capacity))
        yield places, transitions(rng, (places.stop - start,)), priority[places]


def slices_filling(rng: np.random.Generator, stored: int, envs: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield chunks [T, N] that together have `stored` steps, a multiple of `envs`."""
    rows = max(SLICES_CHUNK // envs, 1)
    pool = [bytes_of_steps(rng, (rows, envs)) for _ in range(POOL)]
    whole, rest = divmod(stored // envs, rows)
    for index in range(whole):
        yield pool[index % POOL]
    if rest:
        yield {name: x[:rest] for name, x in pool[0].items()}


def each(leaves: dict[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    """Split leaves [n, ...] into a list of their entries."""
    return [{name: x[index] for name, x in leaves.items()} for index in range(count)]


def cycles(operations: Operations, inputs: Sequence[tuple[Any, Any, Any]]) -> dict[str, float]:
    """Median seconds of a cycle and of each operation in it; inputs are (step, key, priority).

    A mean would include the times when another process has the core, which take as long as fifty calls.
    """
    now, times = time.perf_counter, []
    for step, key, priority in inputs:
        begin = now()
        operations.add(step)
        added = now()
        drawn = operations.sample(key)
        sampled = now()
        if operations.update is not None:
            operations.update(drawn, priority)
        updated = now()
        times.append((added - begin, sampled - added, updated - sampled, updated - begin))
    add, sample, update, total = map(float, np.median(times, axis=0))
    medians = {"add": add, "sample": sample, "total": total}
    return medians if operations.update is None else medians | {"update": update}

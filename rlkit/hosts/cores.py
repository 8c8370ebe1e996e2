"""On which cores XLA's threads compute an update: each on one of its own."""

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_NAME = "tf_XLAEigen"  # what XLA calls the threads that share out the work of a CPU


@cache
def _threads() -> tuple[int, ...]:
    """The system's numbers of XLA's threads, which live as long as the process; none where it does not tell them."""
    found, tasks = [], Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().strip() == _NAME:
                found.append(int(task.name))
    return tuple(sorted(found))


@contextlib.contextmanager
def one_each() -> Iterator[None]:
    """Within, each of XLA's threads stays on a core of its own, where there are as many threads as cores; on Linux.

    After a rollout, on one core or asleep, the kernel often wakes several on the same core and takes as long as an
    update to part them, while another core is idle.
    """
    threads = _threads()
    cores = sorted(os.sched_getaffinity(0)) if threads else []
    if len(threads) < 2 or len(threads) != len(cores):  # fewer threads on the first cores would meet other processes'
        yield
        return
    before: dict[int, set[int]] = {}
    try:
        with contextlib.suppress(OSError):  # a system that forbids it
            for thread, core in zip(threads, cores, strict=True):
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, {core})
        yield
    finally:
        for thread, allowed in before.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, allowed)

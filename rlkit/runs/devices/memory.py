"""Memory of the device: how much there is, and how much arrays take."""

import math
from typing import Any

import jax

from rlkit.runs.devices import read_text

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available(num_devices: int = 1) -> int | None:
    """Return the bytes of memory that devices like the first have together; None where they are not known.

    CPU devices share one memory.
    """
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        limit = (device.memory_stats() or {}).get("bytes_limit")
        return None if limit is None else limit * num_devices
    limits = []  # of the machine and of this process's control group
    for path in _LIMITS:
        text = read_text(path).strip()
        limits += [int(text)] if text.isdigit() else []
    for line in read_text("/proc/meminfo").splitlines():
        name, _, size = line.partition(":")
        limits += [int(size.split()[0]) * 1024] if name == "MemTotal" else []
    return min(limits, default=None)


def tree_num_bytes(tree: Any) -> int:
    """Return the bytes of all arrays, or shapes, of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def num_bytes_on_all(tree: Any, number: int) -> int:
    """Return the bytes of arrays on `number` devices together, with the copies of what is the same on each.

    Arrays, or shapes, without a sharding count once.
    """

    def on_all(x: Any) -> int:
        if getattr(x, "sharding", None) is None:
            return x.size * x.dtype.itemsize
        return number * math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize

    return sum(map(on_all, jax.tree.leaves(tree)))

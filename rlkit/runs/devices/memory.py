"""Memory of the device: how much a run needs, before anything is compiled, and how much there is."""

from pathlib import Path
from typing import Any

import jax

from rlkit.runs.programs.protocol import Program
from rlkit.runs.programs.replay_state import split
from rlkit.types import ConfigError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def available(num_devices: int = 1) -> int | None:
    """Return the bytes of memory that devices like the first have together; None where they are not known.

    CPU devices share one memory.
    """
    device = jax.devices()[0]
    if device.platform != "cpu":
        limit = (device.memory_stats() or {}).get("bytes_limit")
        return None if limit is None else limit * num_devices
    return of_host()


def of_host() -> int | None:
    """Return the bytes of the host's memory that this process may use; None where they are not known."""
    limits = []
    for path in _LIMITS:
        text = _read(path).strip()
        limits += [int(text)] if text.isdigit() else []
    for line in _read("/proc/meminfo").splitlines():
        name, _, size = line.partition(":")
        limits += [int(size.split()[0]) * 1024] if name == "MemTotal" else []
    return min(limits, default=None)


def require(program: Program) -> None:
    """Raise a ConfigError where a run cannot fit the device's memory."""
    needed, limit = program.num_bytes, available(program.num_devices)
    if limit is None or needed <= limit:
        return
    run, agent = program.config.run, program.config.agent
    field = f"num_envs={run.num_envs}" if agent.replay_capacity is None else f"capacity={agent.replay_capacity}"
    without_replay = tree_num_bytes(split(program.template.agent)[0])
    if 2 * without_replay > needed / 2:  # more than half of it is the parameters, in the two copies of a state
        field = f"hidden_sizes={list(agent.hidden_sizes)}"
    raise ConfigError(
        f"{field} with num_seeds={run.num_seeds} needs about {needed / 2**30:.1f} GiB, and there are "
        f"{limit / 2**30:.1f} GiB of memory; lower it, or train fewer seeds at a time"
    )


def tree_num_bytes(tree: Any) -> int:
    """Return the bytes of all arrays, or shapes, of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _read(path: str) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""

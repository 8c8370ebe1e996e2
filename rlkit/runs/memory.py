"""How much memory a run needs, before anything is compiled, and how much there is."""

from pathlib import Path
from typing import Any

import jax

from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.jax_program import Program
from rlkit.spaces import shape_of
from rlkit.types import ConfigError

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def estimate(program: Program | HostProgram) -> int:
    """Bytes of a run: the state twice (a chunk keeps the one that it began with), a rollout, metric lines.

    The temporaries of an update come on top.
    """
    config, state = program.config, program.template
    run = config.run
    if isinstance(program, HostProgram):  # two rollouts on the host; the update takes the buffer over
        obs = num_bytes(shape_of(program.env.obs))
        replay = num_bytes(getattr(state.agent, "replay", ()))
        return 2 * num_bytes(state) - replay + 3 * config.steps_per_update * (2 * obs + 32)
    metrics = jax.eval_shape(program._over_seeds(program.training.step), state)[1]
    obs = num_bytes(state.envs.obs) // (run.num_seeds * run.num_envs)
    rollout = config.steps_per_update * (2 * obs + 32) if config.run.dataset is None else 0
    return 2 * num_bytes(state) + run.num_seeds * rollout + config.updates_per_line * num_bytes(metrics)


def available() -> int | None:
    """Bytes of the first device's memory; None where it is not known."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    found = []
    for limit in _LIMITS:
        text = _read(limit).strip()
        found += [int(text)] if text.isdigit() else []
    for line in _read("/proc/meminfo").splitlines():
        name, _, size = line.partition(":")
        found += [int(size.split()[0]) * 1024] if name == "MemTotal" else []
    return min(found, default=None)


def require(program: Program | HostProgram) -> None:
    """Raise a ConfigError where a run cannot fit the device's memory."""
    needed, there = estimate(program), available()
    if there is None or needed <= there:
        return
    run, capacity = program.config.run, getattr(program.config.agent, "capacity", None)
    field = f"capacity={capacity}" if capacity else f"num_envs={run.num_envs}"
    raise ConfigError(
        f"{field} with num_seeds={run.num_seeds} needs about {needed / 2**30:.1f} GiB, and the device has "
        f"{there / 2**30:.1f} GiB; lower it, or train fewer seeds at a time"
    )


def num_bytes(tree: Any) -> int:
    """Bytes of all arrays, or shapes, of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

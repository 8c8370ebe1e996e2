"""The devices of a run: those over which its seeds, or its environments, are divided; and CPU cores as devices."""

import os
from pathlib import Path
from typing import Any

import jax

from rlkit.hosts.pool import num_cores
from rlkit.training import mesh
from rlkit.types import ConfigError

_FLAG = "xla_force_host_platform_device_count"
_QUOTAS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")  # of cgroups 2 and 1
_PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_period_us"


def use_cpu_cores(number: int | None = None) -> int:
    """Make each CPU core a device of JAX, so that seeds and trials are spread over all of them.

        import rlkit
        rlkit.use_cpu_cores()

    This has to come before anything else of JAX. The command line does it by itself where a run has several seeds.

    Args:
      number: of devices; None for one per core that this process may use.

    Returns:
      The number of devices.

    Raises:
      ConfigError: JAX has started, with another number of devices; or the environment variable XLA_FLAGS sets one.
    """
    number = cores() if number is None else number
    if number < 1:
        raise ConfigError(f"number={number} must be at least 1; leave it out for {cores()}, one per core")
    if _FLAG in os.environ.get("XLA_FLAGS", ""):
        raise ConfigError(f"XLA_FLAGS sets {_FLAG}, and use_cpu_cores would set it too; remove one of them")
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        if (started := len(jax.local_devices(backend="cpu"))) != number:
            raise ConfigError(
                f"number={number} CPU devices must be set before JAX starts, and it has started with {started}; call "
                "rlkit.use_cpu_cores() before anything else of JAX"
            ) from None
    return number


def mesh_of_runs(setting: str | int, num_runs: int) -> jax.sharding.Mesh | None:
    """Return the mesh over which independent runs are spread; None for the first device alone.

    Args:
      setting: the config's `devices`.
      num_runs: seeds or trials.

    Raises:
      ConfigError: there are fewer devices than the setting demands.
    """
    if num_runs == 1 or (setting == 1 and jax.process_count() == 1):
        return None
    available = _available(setting)
    number = mesh.num_devices(num_runs, len(available)) if jax.process_count() == 1 else len(available)
    return mesh.make(available[:number]) if number > 1 else None


def mesh_of_data(setting: str | int, num_runs: int) -> jax.sharding.Mesh | None:
    """Return the mesh over which the environments of a single run are divided; None for one device.

    Args:
      setting, num_runs: as for `mesh_of_runs`. With "auto" a single run has one device, or all of several processes.

    Raises:
      ConfigError: there are fewer devices than the setting demands.
    """
    if num_runs > 1 or (setting in ("auto", 1) and jax.process_count() == 1):
        return None
    available = _available(setting)
    return mesh.make(available, mesh.DATA) if len(available) > 1 else None


def _available(setting: str | int) -> list[Any]:
    """The devices of all processes, or the first of them where the setting is their number."""
    available = jax.devices()
    if not isinstance(setting, int) or setting == len(available):
        return available
    if jax.process_count() > 1:
        raise ConfigError(
            f"devices={setting} must be auto, all or {len(available)} with {jax.process_count()} processes, which have "
            f"{len(available)} devices; leave it out"
        )
    if setting > len(available):
        remedy = "call rlkit.use_cpu_cores() before anything else of JAX, or " if _is_cpu(available) else ""
        raise ConfigError(
            f"devices={setting} must be at most {len(available)}, as JAX has started with them; {remedy}lower it"
        )
    return available[:setting]


def require_one_process(field: str, remedy: str) -> None:
    """Raise a ConfigError where several processes train together.

    Args:
      field: the setting that has one process, and its value.
      remedy: what to do instead.
    """
    if jax.process_count() > 1:
        raise ConfigError(f"{field} needs one process, and {jax.process_count()} train together; {remedy}")


def note(setting: str | int, num_runs: int) -> str | None:
    """Return a hint where several runs share one CPU device and there are more cores; else None."""
    devices = jax.local_devices()
    if jax.device_count() > 1 or num_runs == 1 or setting == 1 or not _is_cpu(devices) or (number := cores()) == 1:
        return None
    return f"one of {number} cores is used: call rlkit.use_cpu_cores() before anything else of JAX to spread runs"


def cores() -> int:
    """Return the number of CPU cores that this process may use, by its affinity and its container's quota."""
    count, granted = num_cores(), quota()
    return count if granted is None else min(count, max(1, int(granted)))


def quota() -> float | None:
    """Return the cores' worth of time that this process's control group grants; None for no limit, or if unknown."""
    for path in _QUOTAS:
        words = read_text(path).split() or ["max"]
        period = words[1] if len(words) > 1 else read_text(_PERIOD).strip()
        if words[0].isdigit() and period.isdigit() and int(period):
            return int(words[0]) / int(period)
    return None


def read_text(path: str) -> str:
    """Return the text of a file of the system; empty where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _is_cpu(devices: list[Any]) -> bool:
    return devices[0].platform == "cpu"

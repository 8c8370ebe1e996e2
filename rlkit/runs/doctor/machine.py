"""Findings about devices, cores, memory and folders."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from rlkit import _cpu
from rlkit._cpu.switch import enabled
from rlkit.hosts.pool import num_cores
from rlkit.runs import files
from rlkit.runs.devices import memory, quota
from rlkit.runs.doctor import Finding
from rlkit.types import ConfigError

_NVIDIA = "/proc/driver/nvidia/version"  # there is a driver, and so a GPU
_LITTLE = 2**30  # bytes on a disk


def examine() -> Iterator[Finding]:
    """Yield findings about the machine; after a fault of JAX's backend, none that need it."""
    yield cores(quota())
    yield _memory()
    yield runs_folder(Path("runs"))
    try:
        devices = jax.devices()
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        yield Finding("fault", "devices", f"JAX finds none: {reason}", "check JAX_PLATFORMS and the driver")
        return
    yield _devices(devices)
    yield tricks(_cpu.missing())


def cores(granted: float | None) -> Finding:
    """Return a finding about the cores that this process may use.

    Args:
      granted: cores' worth of time that its control group grants; None for no limit.
    """
    count = num_cores()
    text = f"{count} of the machine's {os.cpu_count()}"
    if granted is None or granted >= count:
        return Finding("ok", "cores", text)
    fewer = f"0-{max(int(granted), 1) - 1}"
    text += f", but its control group grants the time of {granted:g}, and XLA starts a thread for each core"
    return Finding("note", "cores", text, f"start it as `taskset -c {fewer} rlkit ...`")


def runs_folder(folder: Path) -> Finding:
    """Return a finding about the folder that runs are written to, or where it would be made."""
    existing = folder if folder.exists() else folder.absolute().parent
    try:
        if not existing.is_dir():
            raise ConfigError(f"{folder} must be a folder; rename that file")
        files.require_writable(existing, f"./{folder}")
    except ConfigError as error:
        return Finding("fault", "runs", str(error), "or give rlkit train --out")
    free = shutil.disk_usage(existing).free
    text = f"./{folder} is writable, with {free / 2**30:.1f} GiB free"
    return Finding("ok", "runs", text) if free >= _LITTLE else Finding("note", "runs", text, "make room, or give --out")


def tricks(missing: tuple[str, ...]) -> Finding:
    """Return a finding about the faster programs for XLA's CPU backend.

    Args:
      missing: names of those for which JAX lacks an API.
    """
    if not enabled():
        text = "RLKIT_CPU_TRICKS=0: programs for the CPU are plain, and slower"
        return Finding("note", "CPU tricks", text, "unset it for speed")
    if missing:
        text = f"JAX lacks an API or setting of {', '.join(missing)}: plain and slower on the CPU, and as right"
        return Finding("note", "CPU tricks", text, "another version of JAX has it")
    return Finding("ok", "CPU tricks", "on, and JAX has their APIs")


def _memory() -> Finding:
    """A finding about the memory of the host."""
    limit = memory.of_host()
    return Finding("ok", "memory", "unknown" if limit is None else f"{limit / 2**30:.1f} GiB for this process")


def _devices(devices: Sequence[Any]) -> Finding:
    """A finding about the devices that JAX has."""
    first, count = devices[0], len(devices)
    text = f"{first.platform}: {count} {'device' if count == 1 else 'devices'} ({first.device_kind})"
    if first.platform != "cpu":
        limit = memory.available()
        return Finding("ok", "devices", text if limit is None else f"{text}, {limit / 2**30:.1f} GiB for JAX")
    if Path(_NVIDIA).exists() and "cpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return Finding("note", "devices", f"{text}, though an NVIDIA driver is loaded", 'pip install "jax[cuda13]"')
    return Finding("ok", "devices", text)

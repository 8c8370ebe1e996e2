"""Examination of the installation and the machine, for `rlkit doctor`."""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement

from rlkit import __version__

_PACKAGE = "rlkit-jax"
_SHOWN = ("jax", "jaxlib", "flax", "optax", "gymnax", "numpy")
_NVIDIA = "/proc/driver/nvidia/version"  # there is a driver, and so a GPU
_LITTLE = 2**30  # bytes on a disk


class Finding(NamedTuple):
    """One line of an examination."""

    level: Literal["ok", "note", "fault"]  # a note costs speed or a feature; a fault breaks runs or makes them crawl
    subject: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """Return the finding as one line of text."""
        text = f"{self.level:6}{self.subject:13}{self.text}"
        return " ".join((f"{text}; {self.remedy}" if self.remedy else text).splitlines())


_FAULTS = (  # the first and the last version of jaxlib with it, on CPUs
    (
        ((0, 10, 0), (0, 10, 2)),
        Finding(
            "note",
            "jaxlib",
            "{} can hang in a program with several batched QR decompositions; rlkit has none of them",
            "in networks of your own, use rlkit.networks.orthogonal in place of that of jax.nn.initializers",
        ),
    ),
    (
        ((0, 11, 1), (0, 11, 1)),  # jax 40101
        Finding("fault", "jaxlib", "{} rewrites a whole buffer for each small write in a loop", "use another one"),
    ),
)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installation() -> Iterator[Finding]:
    """Yield findings about the versions of what rlkit needs, from metadata alone: nothing is imported, JAX included."""
    installed = {name: number for name in _SHOWN if (number := installed_version(name))}
    shown = ", ".join(f"{name} {number}" for name, number in installed.items())
    yield Finding("ok", "versions", f"rlkit {__version__}, Python {platform.python_version()}, {shown}")
    try:
        requirements = [Requirement(text) for text in requires(_PACKAGE) or ()]
    except PackageNotFoundError:
        where = "rlkit runs from a folder; the versions of what it needs have not been compared"
        yield Finding("note", "packages", where, "pip install -e . in that folder")
        return
    yield packages([one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})])


def packages(requirements: Sequence[Requirement]) -> Finding:
    """Return a finding about the packages that rlkit needs."""
    problems = []
    for one in requirements:
        installed = installed_version(one.name)
        if installed is None:
            problems.append(f"{one.name} is not installed")
        elif not one.specifier.contains(installed, prereleases=True):
            problems.append(f"{one.name} {installed} is not {one.specifier}")
    if problems:
        return Finding("fault", "packages", "; ".join(problems), f"pip install --upgrade {_PACKAGE}")
    return Finding("ok", "packages", f"the {len(requirements)} that rlkit needs, in the versions that it needs")


def machine() -> Iterator[Finding]:
    """Yield findings about the folder of runs, and about JAX's devices and its version."""
    import jax

    yield runs_folder(Path("runs"))
    try:
        devices = jax.devices()
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        yield Finding("fault", "devices", f"JAX finds none: {reason}", "check JAX_PLATFORMS and the driver")
        return
    yield _devices(devices)
    yield known_fault(version("jaxlib"), devices[0].platform)


def runs_folder(folder: Path) -> Finding:
    """Return a finding about the folder that runs are written to, or where it would be made."""
    from rlkit.runs import files
    from rlkit.types import ConfigError

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


def known_fault(jaxlib: str, platform: str) -> Finding:
    """Return a finding about a version of jaxlib, on the platform of the default devices."""
    number = tuple(map(int, re.findall(r"\d+", jaxlib)[:3]))
    for (first, last), fault in _FAULTS:
        if platform == "cpu" and first <= number <= last:
            return fault._replace(text=fault.text.format(jaxlib))
    return Finding("ok", "jaxlib", f"no known fault of {jaxlib}")


def _devices(devices: Sequence[Any]) -> Finding:
    first, count = devices[0], len(devices)
    text = f"{first.platform}: {count} {'device' if count == 1 else 'devices'} ({first.device_kind})"
    if first.platform == "cpu" and Path(_NVIDIA).exists() and "cpu" not in os.environ.get("JAX_PLATFORMS", ""):
        return Finding("note", "devices", f"{text}, though an NVIDIA driver is loaded", 'pip install "jax[cuda13]"')
    return Finding("ok", "devices", text)

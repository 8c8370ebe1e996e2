"""Wheels of what rlkit needs beside JAX, for a machine without a network."""

import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PREINSTALLED = {"jax", "jaxlib", "numpy", "scipy", "ml-dtypes", "opt-einsum"}  # JAX and what it needs
UNUSED = {"orbax-checkpoint", "tensorstore"}  # of flax, for checkpoints of its own; a third of all bytes
PLATFORMS = [f"manylinux{version}_x86_64" for version in ("_2_28", "_2_27", "2014", "_2_17")]
PYTHON = "3.12"
MOST_BYTES = 64 * 2**20


def pins(package: str = "rlkit-jax") -> list[str]:
    """The packages that `package` needs beside the preinstalled ones, in the versions of this environment."""
    found: dict[str, str] = {}

    def walk(name: str, extras: set[str]) -> None:
        for requirement in map(Requirement, requires(name) or ()):
            needed = canonicalize_name(requirement.name)
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            )
            if applies and needed not in PREINSTALLED | UNUSED | found.keys():
                found[needed] = version(needed)
                walk(needed, requirement.extras)

    walk(package, set())
    return [f"{name}=={number}" for name, number in sorted(found.items())]


def pack(folder: Path) -> int:
    """Download the wheels into a folder; return their bytes. Raises SystemExit where they are too many."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "--python-version", PYTHON, *platforms, "-d", folder, *pins()], check=True)
    wheels = [*folder.glob("*.whl")]
    total = sum(path.stat().st_size for path in wheels)
    print(f"{len(wheels)} wheels, {total / 2**20:.1f} MiB, in {folder}")
    if total > MOST_BYTES:
        raise SystemExit(f"{folder} must stay under {MOST_BYTES >> 20} MiB; empty it, or leave packages out (UNUSED)")
    return total

"""`rlkit doctor`: examine the installation and the machine."""

import argparse
from collections.abc import Iterator
from typing import Any

from rlkit.cli.command import add_command


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    add_command(commands, "doctor", run, "examine installation, machine and known faults; exit code 1 for a fault")


def run(options: argparse.Namespace) -> int:
    """Print findings, one a line; return 1 if one of them is a fault."""
    levels = []
    for finding in _findings():
        print(finding.line(), flush=True)
        levels.append(finding.level)
    return int("fault" in levels)


def _findings() -> Iterator[Any]:
    """Findings of `runs.doctor`; those that need JAX come after it has been imported."""
    from rlkit.runs.doctor import Finding, installation

    yield from installation.examine()
    try:
        import jax  # noqa: F401
    except (ImportError, RuntimeError, AttributeError) as error:  # a broken or an unfitting jaxlib
        yield Finding("fault", "jax", f"it cannot be imported: {error}", "pip install --upgrade jax jaxlib")
        return
    from rlkit.cli.jax_settings import use_cores
    from rlkit.runs.doctor import machine, platforms

    use_cores()
    yield _cache()
    found = list(machine.examine())
    yield from found
    if not any(finding.subject == "devices" and finding.level == "fault" for finding in found):
        yield from platforms.examine()


def _cache() -> Any:
    """A finding about the folder of compiled programs."""
    from rlkit.cli.jax_settings import cache_folder
    from rlkit.runs import files
    from rlkit.runs.doctor import Finding
    from rlkit.types import ConfigError

    try:
        folder = cache_folder()
        if folder is None:
            text = "off by RLKIT_CACHE: each run compiles its programs anew"
            return Finding("note", "cache", text, "unset it to start faster")
        files.require_writable(folder, str(folder))
    except ConfigError as error:
        return Finding("note", "cache", f"not used: {error}", "each run compiles its programs anew until then")
    return Finding("ok", "cache", f"compiled programs are kept in {folder}")

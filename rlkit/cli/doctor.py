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
    from rlkit.runs import doctor

    yield from doctor.installation()
    try:
        import jax  # noqa: F401
    except (ImportError, RuntimeError, AttributeError) as error:  # a broken or an unfitting jaxlib
        yield doctor.Finding("fault", "jax", f"it cannot be imported: {error}", "pip install --upgrade jax jaxlib")
        return
    from rlkit.cli.jax_settings import cache_folder, use_cores
    from rlkit.runs import files
    from rlkit.types import ConfigError

    use_cores()
    try:
        if (folder := cache_folder()) is not None:
            files.require_writable(folder, str(folder))
        kept = "off by RLKIT_CACHE" if folder is None else f"compiled programs are kept in {folder}"
        yield doctor.Finding("ok", "cache", kept)
    except ConfigError as error:
        yield doctor.Finding("note", "cache", f"not used: {error}", "each run compiles its programs anew until then")
    yield from doctor.machine()

"""`rlkit report`: a page about runs and sweeps."""

import argparse
from typing import Any

from rlkit.cli.command import add_command
from rlkit.cli.jax_settings import enable_compilation_cache


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "report", run, "a page about runs or sweeps, HTML that needs no network")
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--out", help="the page (RUN/report.html; of several report.html)")


def run(options: argparse.Namespace) -> int:
    """Write a page about runs, and print its path."""
    enable_compilation_cache()
    from rlkit.runs.reports.report import report

    print(report(options.runs, options.out).path)
    return 0

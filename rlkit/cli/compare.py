"""`rlkit compare`: runs side by side."""

import argparse
from pathlib import Path
from typing import Any

from rlkit.cli.command import add_command, print_table


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    help = "runs side by side: scores, and what differs in configs and versions"
    parser = add_command(commands, "compare", run, help)
    parser.add_argument("runs", metavar="RUN", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Print a comparison of runs."""
    from rlkit.runs import overview

    print_table(*overview.comparison([overview.read_run(Path(run)) for run in options.runs]))
    return 0

"""`rlkit runs`: list runs."""

import argparse
from pathlib import Path
from typing import Any

from rlkit.cli.command import add_command, print_table


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "runs", run, "a table of runs: state, steps, return, and what differs")
    parser.add_argument("folder", metavar="DIR", nargs="?", default="runs", help="the runs' folder (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Print the runs of a folder."""
    from rlkit.runs import overview

    print_table(*overview.table(overview.find(Path(options.folder))))
    return 0

"""`rlkit runs` and `rlkit compare`: a table of runs, and runs side by side."""

import argparse
from pathlib import Path
from typing import Any

from rlkit.cli.command import add_command, print_table


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = add_command(commands, "runs", run, "a table of runs: state, steps, return, and what differs")
    parser.add_argument("folder", metavar="DIR", nargs="?", default="runs", help="the runs' folder (%(default)s)")
    help = "runs side by side: scores, and what differs in configs and versions"
    add_command(commands, "compare", compare, help).add_argument("runs", metavar="RUN", nargs="+")


def run(options: argparse.Namespace) -> int:
    """Print the runs of a folder."""
    from rlkit.runs import overview

    print_table(*overview.table(overview.find(Path(options.folder))))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print a comparison of runs."""
    from rlkit.runs import overview

    print_table(*overview.comparison([overview.read_run(Path(run)) for run in options.runs]))
    return 0

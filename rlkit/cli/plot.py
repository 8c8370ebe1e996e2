"""`rlkit plot`: draw learning curves."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, integer


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "plot", run, "learning curves with intervals, PNG and SVG")
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--out", default="curves", help="the pictures' name, without ending (%(default)s)")
    parser.add_argument("--title", help="text above the axes (the environment of a single run)")
    parser.add_argument("--x", choices=("steps", "time"), default="steps", help="horizontal axis (%(default)s)")
    parser.add_argument("--smooth", type=integer, default=1, metavar="N", help="draw means over N metric lines")


def run(options: argparse.Namespace) -> int:
    """Draw the learning curves of runs, and print the pictures' paths."""
    from rlkit.runs.pictures.curves import plot

    pictures = plot(options.runs, options.out, title=options.title, x=options.x, smooth=options.smooth)
    print("\n".join(map(str, pictures)))
    return 0

"""`rlkit resume`: continue a run."""

import argparse
from typing import Any

from rlkit.cli.command import ENV_HELP, add_command
from rlkit.cli.compilation_cache import enable_compilation_cache
from rlkit.cli.report import report


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "resume", run, "continue from the newest checkpoint")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--env", help=ENV_HELP)


def run(options: argparse.Namespace) -> int:
    """Continue a run."""
    enable_compilation_cache()
    from rlkit.runs.loop import resume

    return report(resume(options.run, env=options.env))

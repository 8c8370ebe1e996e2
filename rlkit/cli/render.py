"""`rlkit render`: record a policy as a GIF, a video or the drawing of a game."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, add_policy, arguments, integer
from rlkit.cli.jax_settings import enable_compilation_cache


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "render", run, "a GIF, a video or a drawn game of the policy")
    parser.add_argument(
        "--out",
        help="the GIF; a video where the name ends in .mp4, and a drawn game of pgx for .svg (RUN/policy.gif or .svg)",
    )
    parser.add_argument("--seed", type=integer, help="seed of the policy, in a run with several (the first)")
    parser.add_argument("--max-steps", type=integer, default=500, help="largest number of steps (%(default)s)")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    """Record an episode, and print its path."""
    enable_compilation_cache()
    from rlkit.runs.pictures.rendering import render
    from rlkit.runs.progress import note_if_slow

    with note_if_slow("compiling ..."):
        path = render(**arguments(options))
    print(path)
    return 0

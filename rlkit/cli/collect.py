"""`rlkit collect`: write a dataset of a policy's transitions."""

import argparse
import shlex
from typing import Any

from rlkit.cli.command import add_command, add_policy, arguments, integer
from rlkit.cli.jax_settings import enable_compilation_cache


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    help = "a dataset of the policy's transitions, to learn from without an environment"
    parser = add_command(commands, "collect", run, help)
    help = "steps of all environments together"
    parser.add_argument("--steps", dest="num_steps", metavar="STEPS", type=integer, required=True, help=help)
    parser.add_argument("--out", help="the dataset's folder (RUN/dataset)")
    parser.add_argument("--num-envs", type=integer, help="environments side by side (16)")
    parser.add_argument("--greedy", action="store_true", help="act as in evaluation, not as in training")
    parser.add_argument("--seed", type=integer, default=0, help="of the environments and the exploration (%(default)s)")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    """Collect a dataset, and print its folder."""
    enable_compilation_cache()
    from rlkit.runs.collecting import collect
    from rlkit.runs.progress import note_if_slow

    with note_if_slow("compiling ..."):
        folder = collect(**arguments(options))
    print(f"{folder}\nlearn from it: rlkit train CONFIG --dataset {shlex.quote(str(folder))}")
    return 0

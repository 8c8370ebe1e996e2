"""`rlkit export`: a policy as a file for programs without rlkit."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, add_policy, arguments, integer
from rlkit.cli.jax_settings import enable_compilation_cache


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "export", run, "the greedy policy as a file that needs no rlkit")
    help = "stablehlo: by jax.export; onnx: needs the extra onnx (the ending of FILE)"
    parser.add_argument("--format", choices=("onnx", "stablehlo"), help=help)
    parser.add_argument("--out", required=True, metavar="FILE", help="the file; an older one is replaced")
    parser.add_argument("--seed", type=integer, help="seed of the policy, in a run with several (the first)")
    add_policy(parser)


def run(options: argparse.Namespace) -> int:
    """Export a policy, and print its file, inputs, outputs and bytes."""
    enable_compilation_cache()
    from rlkit.runs.exporting.export import export
    from rlkit.runs.progress import note_if_slow

    with note_if_slow("converting ..."):
        exported = export(**arguments(options))
    print(exported)
    return 0

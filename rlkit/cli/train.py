"""`rlkit train`: train a config."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, add_config, parse_overrides, print_keys_for_help, print_trained
from rlkit.cli.jax_settings import PROCESSES, enable_compilation_cache, join_processes

FLAGS = ("out", "init_from", *PROCESSES)  # which are no keys of a config


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    usage = "rlkit train CONFIG|AGENT [--key value ...] [--seeds N] [--out DIR] [--init-from RUN] [--coordinator ...]"
    add_config(add_command(commands, "train", run, "train a config", usage))


def run(options: argparse.Namespace) -> int:
    """Train a config, or print its keys."""
    if print_keys_for_help(options, FLAGS):
        return 0
    overrides, flags = parse_overrides(options.rest, FLAGS)
    join_processes(flags)
    from rlkit.runs.config.load import load_config
    from rlkit.runs.programs.agreement import agreed, caught

    config = agreed(caught(lambda: load_config(options.config, overrides)))
    enable_compilation_cache()
    from rlkit.runs.loop import train

    return print_trained(train(config, out=flags.get("out"), init_from=flags.get("init_from")))

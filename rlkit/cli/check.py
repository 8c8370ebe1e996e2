"""`rlkit check`: describe the run of a config without training it."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, add_config, parse_overrides, print_keys_for_help
from rlkit.cli.jax_settings import use_cores
from rlkit.cli.train import FLAGS


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    usage = "rlkit check CONFIG|AGENT [--key value ...]"
    add_config(add_command(commands, "check", run, "describe what a config would run; compiles nothing", usage))


def run(options: argparse.Namespace) -> int:
    """Print a description of the run, or the config's keys."""
    if print_keys_for_help(options, FLAGS):
        return 0
    use_cores()
    from rlkit.runs.config.load import load_config
    from rlkit.runs.describe import describe

    print(describe(load_config(options.config, parse_overrides(options.rest, FLAGS)[0])))
    return 0

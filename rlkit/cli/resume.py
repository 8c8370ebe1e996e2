"""`rlkit resume`: continue a run."""

import argparse
from collections.abc import Sequence
from typing import Any

from rlkit.cli.command import add_command, add_rest, own_code_of, parse_overrides, print_trained
from rlkit.cli.jax_settings import PROCESSES, enable_compilation_cache, join_processes


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    usage = "rlkit resume RUN [--key value ...] [--env MODULE:CLASS] [--agent MODULE:MAKE]"
    help = "continue from the newest checkpoint; keys make the run longer, or change what may change"
    parser = add_command(commands, "resume", run, help, usage)
    parser.add_argument("run", metavar="RUN")
    add_rest(parser)


def run(options: argparse.Namespace) -> int:
    """Continue a run, or print the keys that may change."""
    if {"-h", "--help"} & set(options.rest):
        return _print_keys(options.run, options.rest)
    from rlkit.names import OWN_PARTS

    overrides, flags = parse_overrides(options.rest, ("agent", "env", *OWN_PARTS, *PROCESSES))
    join_processes({name: flags.pop(name) for name in PROCESSES if name in flags})
    enable_compilation_cache()
    from rlkit.runs.config.own_code import OwnCode
    from rlkit.runs.loop import resume

    own_code: OwnCode = {**flags}  # type: ignore[typeddict-item]
    return print_trained(resume(options.run, overrides=overrides, **own_code))


def _print_keys(run: str, words: Sequence[str]) -> int:
    """Print the keys of a run that may change, with their values."""
    from rlkit.runs import run_directory
    from rlkit.runs.config import changes
    from rlkit.runs.config.keys import describe_keys
    from rlkit.runs.config.load import load_config

    config = load_config(run_directory.existing(run) / run_directory.CONFIG, own_code_of(words))
    print(describe_keys(config, lambda key: changes.may_change(key, config.run.agent)))
    return 0

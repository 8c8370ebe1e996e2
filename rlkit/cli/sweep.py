"""`rlkit sweep`: try many values of a config's keys."""

import argparse
from typing import Any

from rlkit.cli.command import add_command, add_rest, parse_overrides, print_table
from rlkit.cli.jax_settings import enable_compilation_cache, use_cores


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    usage = "rlkit sweep SWEEP [--trials N] [--seeds N] [--out DIR] [--key value ...]"
    help = "try many values of a config's keys: a file, a name such as sweeps/ppo_cartpole, or a folder to go on with"
    parser = add_command(commands, "sweep", run, help, usage)
    parser.add_argument("sweep", metavar="SWEEP")
    add_rest(parser)


def run(options: argparse.Namespace) -> int:
    """Run a sweep, and print its best trials; or print the keys of a sweep."""
    if {"-h", "--help"} & set(options.rest):
        return _print_keys()
    overrides, flags = parse_overrides(options.rest, ("out",))
    use_cores()
    enable_compilation_cache()
    from rlkit.runs.config.own_code import is_own
    from rlkit.runs.sweeps import results, sweep

    swept = sweep.sweep(options.sweep, overrides, out=flags.get("out"))
    if swept.signal is not None:
        return 128 + swept.signal
    config = sweep.load_sweep(swept.folder, {key: value for key, value in overrides.items() if is_own(key, value)})
    header, *rows = results.table(swept.results[:10], config)
    print_table(header, rows)
    if len(rows) < len(swept.results):
        print(f"{len(rows)} of {len(swept.results)} trials; all are in {results.TABLE}")
    print(swept.folder / results.TABLE, swept.folder / results.BEST, swept.folder, sep="\n")
    return 0


def _print_keys() -> int:
    """Print the keys of a sweep."""
    from rlkit.runs.config.keys import describe_fields
    from rlkit.runs.sweeps.config import SweepSettings

    print("keys of a sweep, beside those of its base config, whose values may be")
    print("{values: [a, b]}, {uniform: [0, 1]}, {log_uniform: [1.0e-4, 1.0e-2]} or {integers: [1, 8]}:\n")
    fields = SweepSettings.model_fields
    values = {name: None if field.is_required() else field.default for name, field in fields.items()}
    print("\n".join(describe_fields(fields, values)))
    return 0

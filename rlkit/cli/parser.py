"""The parser of the command line, from the commands' own files."""

import argparse

from rlkit.cli import check, collect, eval, list, plot, render, resume, train

_EXAMPLES = """\
examples:
  rlkit train ppo/cartpole                      train a config, into runs/ppo-cartpole
  rlkit train ppo/cartpole --seeds 10           ten seeds in one program
  rlkit train ppo/cartpole --learning-rate 1e-3 --out runs/fast
  rlkit train ppo/cartpole --help               the keys of that config
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its result holds the chosen command's function as `command`."""
    parser = argparse.ArgumentParser(
        prog="rlkit",
        description="A JAX-first functional reinforcement-learning toolkit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (train, check, resume, eval, plot, render, collect, list):
        module.add_to(commands)
    return parser

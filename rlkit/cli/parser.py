"""The parser of the command line, from the commands' own files."""

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

from rlkit.cli import check, collect, doctor, eval, export, list, plot, render, report, resume, runs, sweep, train
from rlkit.names import did_you_mean

_EXAMPLES = """\
examples:
  rlkit train ppo/cartpole                      train a config, into runs/ppo-cartpole
  rlkit train ppo/cartpole --seeds 10           ten seeds in one program
  rlkit train ppo/cartpole --learning-rate 1e-3 --out runs/fast
  rlkit train ppo/cartpole --help               the keys of that config
"""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with a suggestion for a misspelled command."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake, and end with exit code 2."""
        if found := re.search(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            word, known = found[1], re.findall(r"[a-z]+", found[2])
            message = f"command={word[:40]!a} must be one of {', '.join(known)}{did_you_mean(word, known)}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; its result holds the chosen command's function as `command`."""
    parser = Parser(
        prog="rlkit",
        description="A JAX-first functional reinforcement-learning toolkit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_versions(), help="print versions and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    of_runs = (train, check, resume, sweep, eval, plot, render, report, export, collect, runs)
    for module in (*of_runs, list, doctor):
        module.add_to(commands)
    return parser


def _versions() -> str:
    """The version of rlkit and of what its speed and numbers depend on, without importing them."""
    try:
        return f"rlkit {version('rlkit-jax')} (jax {version('jax')}, jaxlib {version('jaxlib')})"
    except PackageNotFoundError as error:  # used from a folder, without having been installed
        return f"rlkit, without an installed {error.name}"

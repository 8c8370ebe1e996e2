"""Functions that the commands' files share: for their parsers, for keys of a config, and to print what they return."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any


def add_command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], help: str, usage: str | None = None
) -> argparse.ArgumentParser:
    """Add a command and return its parser.

    Args:
      commands: as `add_subparsers` returns them.
      name: the word on the command line.
      function: options -> exit code.
      help: one line.
      usage: text in place of argparse's own.
    """
    parser = commands.add_parser(name, help=help, description=help, usage=usage, allow_abbrev=False)
    parser.set_defaults(command=function)
    return parser


def arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a command's arguments by name."""
    return {name: value for name, value in vars(options).items() if name != "command"}


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the policy of a run: RUN, a checkpoint, and the user's own code, which no file may name."""
    from rlkit.names import OWN_PARTS

    parser.add_argument("run", metavar="RUN")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--step", type=integer, help="step of the checkpoint (the newest)")
    choice.add_argument("--best", action="store_true", help="the checkpoint that was evaluated best, with keep_best")
    parser.add_argument("--agent", help="the run's agent again, where it is your own code (module:make)")
    parser.add_argument("--env", help="the run's environment again, where it is your own code (module:Class)")
    for part in OWN_PARTS:
        spellings = dict.fromkeys((f"--{part.replace('_', '-')}", f"--{part}"))
        parser.add_argument(*spellings, help=f"the run's {part} again, where it is your own code (module:function)")
    parser.add_argument("--wrappers", type=_words, help="the run's wrappers again, where one of them is your own code")


def integer(text: str) -> int:
    """A whole number, as in a config: 1000, 1_000 or 1e3."""
    from rlkit.runs.config.strict_yaml import scalar

    value = scalar(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
        raise ValueError
    return int(value)


def _words(text: str) -> list[str]:
    """One word, or a YAML list of words."""
    from rlkit.runs.config.strict_yaml import parse

    value = parse(text)
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ValueError
    return value


def yaml_value(text: str) -> Any:
    """A value as in a config: {length: 200}, [frame_stack:4], 1e3."""
    from rlkit.runs.config.strict_yaml import parse

    return parse(text)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the argument CONFIG, and collect the words after it as `rest`: they depend on the config's keys."""
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="a file, a name such as ppo/cartpole, or an agent such as ppo, with --env; with --help, its keys",
    )
    add_rest(parser)


def add_rest(parser: argparse.ArgumentParser) -> None:
    """Collect all further words as `rest`; there may be none."""
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False


def print_keys_for_help(options: argparse.Namespace, flags: Sequence[str]) -> bool:
    """Print the keys of a config if --help is among the words after it; True where it is.

    Of the other words those count that name the user's own code, which no file may name; `flags` as in
    `parse_overrides`.
    """
    if not {"-h", "--help"} & set(options.rest):
        return False
    from rlkit.runs.config.keys import describe_keys
    from rlkit.runs.config.load import agent_alone, load_config

    given = own_code_of(options.rest, flags)
    if agent_alone(options.config) is not None:
        given.setdefault("env", "CartPole-v1")  # any one: the keys and their ranges are the same
    print(describe_keys(load_config(options.config, given)))
    return True


def own_code_of(words: Sequence[str], flags: Sequence[str] = ()) -> dict[str, Any]:
    """Return the overrides in words beside --help that name the user's own code; `flags` as in `parse_overrides`."""
    from rlkit.names import OWN_CODE_KEYS
    from rlkit.types import ConfigError

    own_code: dict[str, Any] = {"wandb": None}  # nothing connects
    with suppress(ConfigError):  # of a word that is not finished yet
        given, _ = parse_overrides([word for word in words if word not in ("-h", "--help")], flags)
        own_code |= {key: given[key] for key in OWN_CODE_KEYS if key in given}
    return own_code


def parse_overrides(words: Sequence[str], flags: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse `--key value` and `--key=value`.

    Args:
      words: of the command line, after the config.
      flags: names of the command's own flags, such as init_from, which are no keys of a config.

    Returns:
      YAML values by key, and the texts of the command's own flags by name.

    Raises:
      ConfigError: a word that is no flag, a flag without a value, or one given twice.
    """
    from rlkit.names import shorten
    from rlkit.runs.config.errors import show_value
    from rlkit.runs.config.strict_yaml import parse
    from rlkit.types import ConfigError

    values: dict[str, Any] = {}
    texts: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        flag, equals, text = word.partition("=")
        if not flag.startswith("--") or flag == "--":
            remedy = f"--{word.replace('=', ' ', 1)}" if re.fullmatch(r"[\w.-]+=.+", word) else "--key value"
            raise ConfigError(f"{show_value(word)} must be a flag; write {shorten(remedy)}")
        name, dot, inner = flag[2:].partition(".")
        key = "num_seeds" if name == "seeds" else name.replace("-", "_") + dot + inner
        if not equals:
            if not left or left[0].startswith("--"):
                raise ConfigError(f"{flag} needs a value; write {flag} VALUE, e.g. true for a switch")
            text = left.pop(0)
        if key in values or key in texts:
            raise ConfigError(f"{flag} is given twice; keep one")
        if key in flags:
            texts[key] = text
            continue
        try:
            values[key] = parse(text)
        except ValueError as error:
            raise ConfigError(f"{flag}={show_value(text)} must be one YAML value: {error}") from None
    return values, texts


def print_trained(trained: Any) -> int:
    """Print the evaluation and the directory of a `runs.loop.Trained`; return the exit code."""
    if trained.signal is not None:
        return 128 + trained.signal
    from rlkit.training import processes

    if not processes.is_first():
        return 0
    from rlkit.runs.scores import evaluation_line

    evaluated = trained.evaluation is not None
    print(
        evaluation_line(trained.evaluation) if evaluated else "no evaluation (eval_episodes: 0)", trained.run, sep="\n"
    )
    return 0


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: fitted to the terminal, and with whole cells, separated by tabs, into a file or a pipe."""
    if not sys.stdout.isatty():
        print("\n".join("\t".join(" ".join(cell.split()) for cell in row) for row in (header, *rows)))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in header:
        table.add_column(name, overflow="fold", min_width=min(len(name), 8))
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, so that brackets are no markup
    Console().print(table)

"""The command line: `rlkit`, and `python -m rlkit`.

JAX is imported only by the commands that need it, so that help is shown at once.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise

from rlkit.cli.parser import make_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      arguments: the words after `rlkit`; None for those of this process.

    Returns:
      The exit code: 0; 1 where a run or the system failed; 2 for a mistake; 128 + N after signal N.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if os.name == "nt":
        print("rlkit: runs need a POSIX system, and this is Windows; use WSL (wsl --install)", file=sys.stderr)
        return 2
    options = make_parser().parse_args(words)
    _make_own_code_importable(words)
    code = _run(options)
    if (lost_process := sys.modules.get("rlkit.runs.devices.lost_process")) is not None:
        lost_process.leave(code)
    return code


def _run(options: argparse.Namespace) -> int:
    """Run a command, and print the line of what it raises."""
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("rlkit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # e.g. rlkit list | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            if (lost_process := sys.modules.get("rlkit.runs.devices.lost_process")) is not None:
                lost_process.end_if_lost(error)
                lost_process.leave(1, together=False)
            raise
        print(f"rlkit: {error}", file=sys.stderr)
        return code


def _make_own_code_importable(words: Sequence[str]) -> None:
    """Let the words that name own code import modules of the current folder, as `python -m rlkit` can."""
    from rlkit.names import OWN_CODE_KEYS

    flags = [f"--{spelled}" for key in OWN_CODE_KEYS for spelled in (key, key.replace("_", "-"))]
    values = [value for flag, _, value in (word.partition("=") for word in words) if flag in flags]
    values += [value for flag, value in pairwise(words) if flag in (*flags, "train", "check")]  # an agent, my:make
    names = re.findall(r"[\w.]+:\w+", " ".join(values))
    if names:
        from rlkit.hosts.registry import is_own

        if any(map(is_own, names)) and not {"", os.getcwd()} & set(sys.path):
            sys.path.insert(0, os.getcwd())


def _exit_code(error: Exception) -> int | None:
    """2 for a mistake, 1 for a failure outside of rlkit, None for an error that needs its traceback."""
    from rlkit.types import ConfigError

    if isinstance(error, ConfigError):
        return 2
    # A class whose module has not been imported cannot be that of the error.
    names = (("rlkit.runs.loop", "NonFiniteError"), ("rlkit.hosts.failure", "HostError"))
    failures = [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]
    return 1 if isinstance(error, (OSError, *failures)) else None

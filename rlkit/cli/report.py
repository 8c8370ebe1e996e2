"""`rlkit report` and `rlkit watch`: a page about runs and sweeps, and the page of a run that trains."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from rlkit.cli.command import add_command
from rlkit.cli.jax_settings import enable_compilation_cache


def add_to(commands: Any) -> None:
    """Add the commands to the parser."""
    parser = add_command(commands, "report", run, "a page about runs or sweeps, HTML that needs no network")
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--out", help="the page (RUN/report.html; of several report.html)")
    parser = add_command(commands, "watch", watch, "the report of a run in a browser, renewed while the run trains")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--port", type=int, default=0, help="port on this machine (a free one)")


def run(options: argparse.Namespace) -> int:
    """Write a page about runs, and print its path."""
    enable_compilation_cache()
    from rlkit.runs.reports.report import report

    print(report(options.runs, options.out).path)
    return 0


def watch(options: argparse.Namespace) -> int:
    """Serve the page of a run on this machine until Ctrl-C, and print its address."""
    enable_compilation_cache()
    from rlkit.runs.reports.watching import Server

    with Server(Path(options.run), options.port) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"{server.address} shows {options.run}; Ctrl-C ends this", flush=True)
        server.serve_forever()
    return 0

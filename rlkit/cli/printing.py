"""Text that commands print: evaluations and tables."""

import sys
from collections.abc import Sequence
from typing import Any


def print_trained(trained: Any) -> int:
    """Print the evaluation and the directory of a `runs.loop.Trained`; return the exit code."""
    if trained.signal is not None:
        return 128 + trained.signal
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

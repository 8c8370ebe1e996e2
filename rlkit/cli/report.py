"""Text that commands print: evaluations and tables."""

import sys
from collections.abc import Sequence
from typing import Any


def report(trained: Any) -> int:
    """Print the evaluation and the directory of a `runs.loop.Trained`; return the exit code."""
    if trained.signal is not None:
        return 128 + trained.signal
    evaluated = trained.evaluation is not None
    print(
        evaluation_line(trained.evaluation) if evaluated else "no evaluation (eval_episodes: 0)", trained.run, sep="\n"
    )
    return 0


def evaluation_line(evaluation: dict[str, Any]) -> str:
    """Return the scores of an evaluation, as `runs.scores.evaluate` makes it, in one line."""
    if not evaluation["episodes"]:
        return f"step {evaluation['step']}: no greedy episode ended"
    numbers = (evaluation["mean"], evaluation["iqm"], *evaluation["interval"])
    mean, center, low, high = ("not finite" if number is None else f"{number:.4g}" for number in numbers)
    runs, best = "seed(s)", ""
    if evaluation["interval_over"] == "members":
        runs = "members"
    if "best_member" in evaluation:
        best = f"; best member {evaluation['best_member']}: {evaluation['best_mean']:.4g}"
    return (
        f"step {evaluation['step']}: greedy return {mean}, IQM {center} "
        f"[{low}, {high}] over {len(evaluation['seeds'])} {runs} and {evaluation['episodes']} episodes{best}"
    )


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

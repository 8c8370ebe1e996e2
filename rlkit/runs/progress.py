"""Display of a run's progress: a live bar on a terminal, one line in a notebook, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rlkit.runs.metrics import mean

Describe = Callable[[int, int, dict[str, Any]], str]


class Silent:
    """A display that shows nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *exception: Any) -> None: ...

    def print(self, text: str) -> None:
        """Show a line of text."""

    def update(self, step: int, line: dict[str, Any]) -> None:
        """Show the progress at environment step `step`, with the metric line of that step."""


def _print_later(text: str) -> threading.Timer:
    """Print a line of text to the error output after two seconds, unless the timer is cancelled before."""
    timer = threading.Timer(2.0, print, (text,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    return timer


@contextmanager
def note_if_slow(text: str) -> Iterator[None]:
    """Print a line of text if the block takes more than two seconds."""
    timer = _print_later(text)
    try:
        yield
    finally:
        timer.cancel()


class Plain(Silent):
    """A display of plain lines, at most one every few seconds, for logs."""

    def __init__(self, total: int, describe: Describe, seconds: float = 5.0):
        self.total, self.describe, self.seconds, self.last = total, describe, seconds, -seconds
        self.waiting = threading.Timer(0.0, lambda: None)  # replaced when the display starts
        self.first: tuple[int, float] | None = None  # step and seconds of the first line, which takes longest

    def __enter__(self) -> "Plain":
        self.waiting = _print_later("compiling ...")
        return self

    def __exit__(self, *exception: Any) -> None:
        self.waiting.cancel()

    def print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def update(self, step: int, line: dict[str, Any]) -> None:
        """Show the progress, unless a line was shown just before."""
        self.waiting.cancel()
        now, (first_step, first_seconds) = time.monotonic(), self.first or (step, line["seconds"])
        self.first = first_step, first_seconds
        if now - self.last >= self.seconds or step >= self.total:
            self.last = now
            left = ""
            if step > first_step:
                seconds = (self.total - step) * (line["seconds"] - first_seconds) / (step - first_step)
                left = f", {max(seconds, 0.0):.0f} s left"
            self._show(f"{self.describe(step, self.total, line)}{left}")

    def _show(self, progress: str) -> None:
        self.print(progress)


class Notebook(Plain):
    """A display of one line below a notebook's cell, which is replaced when there is news; it needs IPython alone."""

    def __init__(self, total: int, describe: Describe):
        super().__init__(total, describe, seconds=0.5)
        self.output: Any = None  # IPython's handle of the line

    def _show(self, progress: str) -> None:
        """Show a line of progress in place of the one before."""
        from IPython.display import display

        content = {"text/plain": progress}
        if self.output is None:
            self.output = display(content, raw=True, display_id=True)
        else:
            self.output.update(content, raw=True)


class Bar(Silent):
    """A display with a live bar: steps, steps per second, return, time left."""

    def __init__(self, total: int, describe: Describe, console: Any):
        from rich import progress as rich

        self.total, self.describe, self.console = total, describe, console
        columns = [rich.BarColumn(40), rich.TextColumn("{task.description}"), rich.TimeRemainingColumn()]
        self.bar = rich.Progress(*columns, console=console)
        self.task = self.bar.add_task("compiling", total=total)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def update(self, step: int, line: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=step, description=self.describe(step, self.total, line))


def make_display(total: int, *, show: bool = True, describe: Describe | None = None) -> Silent:
    """Return the display that fits the output: a terminal, a notebook, or a log.

    Args:
      total: environment steps of the whole run.
      show: False for a display that shows nothing.
      describe: (step, total, metric line) -> text; None for that of a run.
    """
    if not show:
        return Silent()
    from rich.console import Console

    console = Console(stderr=True)
    describe = describe or describe_run
    if console.is_jupyter:
        return Notebook(total, describe)
    return Bar(total, describe, console) if console.is_terminal else Plain(total, describe)


def describe_run(step: int, total: int, line: dict[str, Any]) -> str:
    """Return steps, steps per second and the mean return as text, or the mean reward while no episode has ended."""
    if (episodes := mean(line.get("return_mean"))) is not None:
        learned = f"return {episodes:.4g}"
    elif (steps := mean(line.get("reward_mean"))) is not None:
        learned = f"no episode ended, reward {steps:.4g} a step"
    else:
        learned = "no episode ended"
    return f"{_short(step)}/{_short(total)} steps, {_short(line['steps_per_second'])}/s, {learned}"


def _short(number: float) -> str:
    """A number with three digits and a unit: 1.23M for 1234567."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"

"""What a person sees while a run trains: a live bar on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import Any

import numpy as np


class Silent:
    """Shows nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *exception: Any) -> None: ...

    def say(self, text: str) -> None: ...

    def update(self, step: int, line: dict[str, Any]) -> None: ...


class Plain(Silent):
    """A line at most every few seconds, for logs."""

    def __init__(self, total: int, seconds: float = 5.0):
        self.total, self.seconds, self.last = total, seconds, -seconds

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def update(self, step: int, line: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self.last >= self.seconds or step >= self.total:
            self.last = now
            left = (self.total - step) * line["seconds"] / step
            self.say(f"{_describe(step, self.total, line)}, {left:.0f} s left")


class Bar(Silent):
    """A live bar: steps, steps per second, return, time left."""

    def __init__(self, total: int, console: Any):
        from rich import progress as rich

        self.total, self.console = total, console
        columns = [rich.BarColumn(40), rich.TextColumn("{task.description}"), rich.TimeRemainingColumn()]
        self.bar = rich.Progress(*columns, console=console)
        self.task = self.bar.add_task("compiling", total=total)

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def update(self, step: int, line: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=step, description=_describe(step, self.total, line))


def progress(total: int, *, show: bool = True) -> Silent:
    """The display that fits where the output goes; `total` in environment steps."""
    if not show:
        return Silent()
    from rich.console import Console

    console = Console(stderr=True)
    return Bar(total, console) if console.is_terminal or console.is_jupyter else Plain(total)


def _describe(step: int, total: int, line: dict[str, Any]) -> str:
    returns = [value for value in np.atleast_1d(line["return_mean"]) if value is not None]
    said = f"return {np.mean(returns):.4g}" if returns else "no episode ended"
    return f"{_short(step)}/{_short(total)} steps, {_short(line['steps_per_second'])}/s, {said}"


def _short(number: float) -> str:
    """1234567 -> 1.23M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"

"""Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) during a run."""

import signal
import threading
from types import FrameType
from typing import Any

from rlkit.training import processes

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Context that records the signals that end a run, which then ends between two chunks; a second one interrupts.

    A SIGHUP that is ignored, as under `nohup`, stays ignored.

    Attributes:
      received: number of the first signal, as soon as it comes; None before.
      agreed: the same as of the last `look`, in all processes that train together.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.agreed: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # under nohup
                self.previous[number] = signal.signal(number, self._record)
        return self

    def look(self) -> int | None:
        """Agree with the other processes on the signal that has come to any of them, and return `agreed`."""
        self.agreed = processes.greatest(self.received or 0) or None
        return self.agreed

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

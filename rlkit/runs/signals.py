"""Ctrl-C and SIGTERM during a run."""

import signal
import threading
from types import FrameType
from typing import Any


class Signals:
    """Context that records Ctrl-C and SIGTERM, so that a run ends between two chunks; a second signal interrupts."""

    def __init__(self) -> None:
        self.received: int | None = None  # number of the first signal
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, frame: FrameType | None) -> None:
        """Record a signal."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

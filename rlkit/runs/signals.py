"""Ctrl-C and SIGTERM, noted while compiled code runs."""

import signal
import threading
from types import FrameType
from typing import Any


class Signals:
    """Notes Ctrl-C and SIGTERM while chunks run, so that a run ends between two of them; a second one interrupts."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    def __exit__(self, *exception: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

"""A metric line's updates in parts of a few seconds, so that a signal does not wait for the whole line."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rlkit.runs.programs.protocol import Chunk

SECONDS = 5.0  # that a part may take, as far as the one before it tells


class LineUpdates(NamedTuple):
    """The updates since the last metric line."""

    count: int
    metrics: Mapping[str, np.ndarray]  # [count, ...]
    seconds: float


class Parts:
    """The parts of a metric line, and how many updates the next one has.

    Args:
      most: updates of a part; None where a chunk ends by itself when a signal comes, and is asked for the whole line.
    """

    def __init__(self, most: int | None):
        self.most = most
        self._next = 1  # updates of the next part that take no longer than SECONDS, or twice those of the last one
        self._rows: list[dict[str, np.ndarray]] = []
        self._count, self._seconds = 0, 0.0

    @property
    def pending(self) -> bool:
        """True where updates were made since the last line."""
        return bool(self._rows)

    def count(self, updates: int) -> np.int32:
        """Return how many of the updates to the next line the next part has."""
        return np.int32(updates if self.most is None else min(updates, self.most, self._next))

    def add(self, chunk: Chunk, seconds: float) -> None:
        """Add a part that took so many seconds."""
        count = int(chunk.count)
        self._rows.append({name: np.asarray(x)[:count].copy() for name, x in chunk.metrics.items()})
        self._count, self._seconds = self._count + count, self._seconds + seconds
        self._next = max(1, int(min(2.0, SECONDS / max(seconds, 1e-6)) * count))

    def join(self) -> LineUpdates:
        """Return all updates since the last line, and begin a new one."""
        metrics = {name: np.concatenate([row[name] for row in self._rows]) for name in self._rows[0]}
        updates = LineUpdates(self._count, metrics, self._seconds)
        self._rows, self._count, self._seconds = [], 0, 0.0
        return updates

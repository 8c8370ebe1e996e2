"""The parts of a metric line: a signal is noticed between two of them."""

import numpy as np

from rlkit.runs.programs.protocol import Chunk

PART_SECONDS = 5.0  # that a part of a metric line should take, judged by the part before it


class Parts:
    """Divides the updates of a metric line into parts of a few seconds, since a signal is noticed between two parts.

    Args:
      most: the most updates of a part; None for a program whose chunks end when a signal comes: a part is a whole line.
    """

    def __init__(self, most: int | None):
        self.most = most
        self._next = 1  # the most updates of the next part
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
        in_time = int(PART_SECONDS / max(seconds, 1e-6) * count)
        self._next = max(1, min(2 * self._next, in_time))  # doubled at most, as the first updates may be quick ones

    def join(self) -> tuple[int, dict[str, np.ndarray], float]:
        """Begin a new line. Return the number K of updates since the last one, their metrics [K, ...], and seconds."""
        metrics = {name: np.concatenate([row[name] for row in self._rows]) for name in self._rows[0]}
        updates = self._count, metrics, self._seconds
        self._rows, self._count, self._seconds = [], 0, 0.0
        return updates

"""Consecutive updates of a run whose environments are outside of JAX."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from rlkit import hosts
from rlkit.hosts.collect import NotFinite
from rlkit.hosts.failure import Failure
from rlkit.hosts.processes import Interrupted
from rlkit.runs.programs.protocol import Chunk
from rlkit.types import ConfigError, PyTree


class HostChunks(ABC):
    """The part of a `Program` that makes updates, one call of `iterate` after another."""

    pool: hosts.Pool | hosts.VectorPool
    note: str | None
    num_streams: int | None = None
    num_devices = 1
    most_updates: int | None = None

    def __init__(self) -> None:
        self.should_stop: Callable[[], bool] = lambda: False
        self.on_failure: Callable[[Failure], None] = lambda failure: None
        self.on_progress: Callable[[str], None] = lambda text: None
        self._failure: Exception | None = None  # of the environments, to be raised by the next call
        self.begun = False  # True once the environments have been reset
        self.non_finite: str = "a quantity"  # of the last update that was not finite
        self.before: PyTree = None  # the state before that update

    @abstractmethod
    def compile(self) -> None:
        """Compile `advance`; without this call, its first call does."""

    @abstractmethod
    def begin(self, state: PyTree) -> None:
        """Reset the environments of a run that goes on with a state."""

    @abstractmethod
    def iterate(self, state: PyTree, most: int) -> tuple[PyTree, list[dict[str, Any]], bool]:
        """Make at least one update and at most `most`: the state, metrics of each, and whether the last is finite."""

    def advance(self, state: PyTree, count: np.int32) -> Chunk:
        """Make `count` updates, or fewer where one is not finite or where `should_stop()`.

        The replay buffer of the state is donated; everything else outlives the call.
        """
        self.compile()
        if self._failure is not None:
            raise self._failure
        if not self.begun:
            self.begin(state)
        rows: list[dict[str, Any]] = []
        finite = True
        while finite and len(rows) < count and not self.should_stop():
            try:
                state, new_rows, finite = self.iterate(state, int(count) - len(rows))
            except Interrupted:
                break
            except NotFinite as error:
                self.non_finite, finite = f"env={self.pool.name!r}: {error}", False
                new_rows = [(rows or [{}])[-1]]
            except (hosts.HostError, ConfigError) as error:
                if not rows:
                    raise
                self._failure = error
                break  # the updates so far are returned first; the next call raises
            rows += new_rows
        metrics: Any = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in (rows or [{}])[0]}
        num_updates: Any = np.int32(len(rows))
        is_finite: Any = np.bool_(finite)
        return Chunk(state, num_updates, is_finite, metrics)

    def compile_evaluation(self) -> None:  # noqa: B027 there may be nothing to do
        """Do nothing: acting is compiled in the first evaluation, for its number of environments."""

    def state_before_last(self, state: PyTree, chunk: Chunk) -> PyTree:
        """Return the state before the last update of the last chunk."""
        return self.before

    def name_non_finite(self, before: PyTree, chunk: Chunk) -> str:
        """Name the quantity that was not finite in the last update of the last chunk."""
        return self.non_finite

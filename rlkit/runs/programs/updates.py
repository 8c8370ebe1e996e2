"""Consecutive updates as one compiled loop, which stops after one that is not finite; the parts of a metric line."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.runs.programs.finite import all_finite, declared, floats
from rlkit.runs.programs.protocol import Chunk
from rlkit.types import Agent, Array, PyTree

PART_SECONDS = 5.0  # that a part of a metric line should take, judged by the part before it
CHUNK_AXES: Any = Chunk(state=0, count=0, finite=0, metrics=1)  # type: ignore[arg-type]  # of runs, or of devices


def advance(step: Callable, agent: Agent | None, length: int, state: PyTree, count: Array) -> Chunk:
    """Up to `count` steps, their metrics in buffers of `length` rows; with an agent, up to one that is not finite."""
    rows = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), jax.eval_shape(step, state)[1])

    def unfinished(chunk: Chunk) -> Array:
        return (chunk.count < count) & chunk.finite

    def body(chunk: Chunk) -> Chunk:
        state, metrics = step(chunk.state)
        rows = jax.tree.map(lambda buffer, x: buffer.at[chunk.count].set(x), chunk.metrics, metrics)
        finite = jnp.bool_(True) if agent is None else all_finite(watched(agent, state, metrics))
        return Chunk(state, chunk.count + 1, finite, rows)

    return jax.lax.while_loop(unfinished, body, Chunk(state, jnp.int32(0), jnp.bool_(True), rows))


def advance_on_device(advance: Callable, state: PyTree, count: Array) -> Chunk:
    """`advance` of the runs on one device, with a count [1] of its own."""
    chunk = advance(state, count)
    return chunk._replace(count=chunk.count[None], finite=chunk.finite[None])


def watched(agent: Agent, state: PyTree, metrics: dict[str, Array]) -> dict[str, PyTree]:
    """Quantities that must stay finite, by the names that errors give them."""
    return {
        **declared(agent, metrics),
        "params": floats(agent.actor(state.agent)),
        "observations": floats(state.envs.obs),
        "rewards": [state.envs.episode_return, jnp.where(metrics["lengths"] > 0, metrics["returns"], 0.0)],
    }


class LineUpdates(NamedTuple):
    """The updates since the last metric line."""

    count: int
    metrics: Mapping[str, np.ndarray]  # [count, ...]
    seconds: float


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

    def join(self) -> LineUpdates:
        """Return all updates since the last line, and begin a new one."""
        metrics = {name: np.concatenate([row[name] for row in self._rows]) for name in self._rows[0]}
        updates = LineUpdates(self._count, metrics, self._seconds)
        self._rows, self._count, self._seconds = [], 0, 0.0
        return updates

"""Consecutive updates as one compiled loop, which stops after one that is not finite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rlkit.runs.programs.finite import all_finite, declared, floats
from rlkit.runs.programs.protocol import Chunk
from rlkit.types import Agent, Array, PyTree

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

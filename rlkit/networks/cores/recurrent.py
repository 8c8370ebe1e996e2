"""Recurrent networks along time, their memory reset where an episode starts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlkit._mesh import vary_like
from rlkit.types import Array, Key, Network, PyTree


def unroll(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    start_memory: PyTree,
    memory: PyTree,
    inputs: PyTree,
    start: Array,
) -> tuple[PyTree, PyTree]:
    """Scan `step` along time, with the memory reset where an episode starts.

    Args:
      step: (memory, input), leaves [B, ...] -> (next memory, output).
      start_memory: the memory at the start of an episode, for one stream.
      memory: [B, ...] before the first row; not reset, even if an episode starts there.
      inputs: [T, B, ...].
      start: [T, B] bool, True where an episode starts at this row.

    Returns:
      The outputs [T, B, ...], and the memory before each row [T, B, ...].
    """

    def row(memory, inputs):
        x, start = inputs
        memory = where_rows(start, start_memory, memory)
        next_memory, output = step(memory, x)
        return next_memory, (output, memory)

    start = start.at[0].set(False)
    return jax.lax.scan(row, vary_like(memory, inputs, start), (inputs, start))[1]


def along(
    network: Network,
    params: PyTree,
    stats: PyTree,
    obs: PyTree,
    start: Array,
    memory: PyTree,
    *,
    train: bool = False,
    key: Key | None = None,
) -> tuple[PyTree, PyTree, PyTree]:
    """Apply a recurrent network along time; only the part that needs the memory runs step by step, if it has to.

    Args:
      network, params, stats: a network with a memory, its parameters and its statistics, which only one with `parts`
        can have.
      obs: [T, B, ...].
      start: [T, B] bool, True where an episode starts at this row.
      memory: [B, ...] before the first row; see `unroll`.
      train, key: as for `Network.apply`.

    Returns:
      The results of `apply` except the memory, [T, B, ...] (a tuple if there are several), the memory before each row,
      and the statistics.
    """
    parts = network.parts
    if parts is None:

        def step(memory: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
            *output, next_memory = network.apply(params, stats, obs, memory, train=train, key=key)[0]
            return next_memory, output[0] if len(output) == 1 else tuple(output)

        return *unroll(step, network.memory, memory, obs, start), stats
    hidden, stats = parts.encode(params, stats, obs, train=train, key=key)

    def advance_one(memory: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
        return parts.advance(params, stats, memory, x)

    if parts.unroll is None:
        hidden, memories = unroll(advance_one, network.memory, memory, hidden, start)
    else:
        hidden, memories = parts.unroll(params, stats, memory, hidden, start)
    output, stats = parts.decode(params, stats, hidden, train=train, key=key)
    return output, memories, stats


def where_rows(rows: Array, x: PyTree, y: PyTree) -> PyTree:
    """Return `x` (leaves [...], equal for all rows, or [B, ...]) where `rows` [B] bool is true, and `y` elsewhere."""

    def choose(a, b):
        condition = rows.reshape(rows.shape + (1,) * (b.ndim - rows.ndim))
        return jnp.where(condition, jnp.broadcast_to(jnp.asarray(a, b.dtype), b.shape), b)

    return jax.tree.map(choose, x, y)

"""Recurrent networks along time, with their memory put back where an episode starts."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlkit.types import Array, PyTree


def unroll(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    start_memory: PyTree,
    memory: PyTree,
    inputs: PyTree,
    start: Array,
) -> tuple[PyTree, PyTree]:
    """Scan `step` along time.

    Args:
      step: (memory, input), leaves [B, ...] -> (next memory, output).
      start_memory: the memory at the start of an episode, for one stream.
      memory: [B, ...] before the first row; it is taken as it is, also where an episode starts there.
      inputs: [T, B, ...].
      start: [T, B] bool, whether an episode starts at this row.

    Returns:
      The outputs [T, B, ...], and the memory before each row [T, B, ...].
    """

    def row(memory, inputs):
        x, start = inputs
        memory = where_rows(start, start_memory, memory)
        after, output = step(memory, x)
        return after, (output, memory)

    start = start.at[0].set(False)
    return jax.lax.scan(row, memory, (inputs, start))[1]


def where_rows(rows: Array, x: PyTree, y: PyTree) -> PyTree:
    """`x` (leaves [...], the same for all rows) in the rows [B] (bool) that are true, else `y` (leaves [B, ...])."""

    def choose(a, b):
        condition = rows.reshape(rows.shape + (1,) * (b.ndim - rows.ndim))
        return jnp.where(condition, jnp.asarray(a, b.dtype)[(None,) * rows.ndim], b)

    return jax.tree.map(choose, x, y)

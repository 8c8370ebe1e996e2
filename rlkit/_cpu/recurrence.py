"""Linear recurrences, step by step.

An associative scan over T rows has 2 log T passes over all of them, which pay off where a pass takes as long as a row.
On a CPU the rows of a loop stay in the caches.
"""

from collections.abc import Callable

from jax import lax

from rlkit._cpu.switch import enabled
from rlkit.types import PyTree


def recurrence(
    advance: Callable[[PyTree, PyTree, PyTree], PyTree],
    plain: Callable[[PyTree, PyTree], PyTree],
    zeros: PyTree,
    a: PyTree,
    b: PyTree,
) -> PyTree:
    """Return h_t = advance(h_{t-1}, a_t, b_t) [T, ...] of all rows of `a` and `b`, from `zeros` on: `plain(a, b)`."""

    def on_cpu(a: PyTree, b: PyTree) -> PyTree:
        def row(h: PyTree, inputs: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            h = advance(h, *inputs)
            return h, h

        return lax.scan(row, zeros, (a, b))[1]

    return lax.platform_dependent(a, b, cpu=on_cpu, default=plain) if enabled() else plain(a, b)

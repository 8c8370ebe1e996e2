"""Replay buffers as pure functions on states of arrays: uniform, prioritized, and slices of episodes.

In a jitted loop, add first; then sample and update, as often as wanted. To add what does not depend on all that was
sampled before it in the same iteration makes XLA copy the buffer, so that the sample could still be read from it.

Called from Python, donate the state: `jax.jit(buffer.add, donate_argnums=0)`. On a CPU, a program that waits for each
such call is three times as fast with one thread of XLA's (`NPROC=1` in its environment) and with calls that run where
they are called: `jax.config.update("jax_cpu_enable_async_dispatch", False)`, before anything is computed.
"""

from rlkit.replay.invariants import check
from rlkit.replay.prioritized_buffer import prioritized
from rlkit.replay.slice_buffer import slices
from rlkit.replay.uniform_buffer import uniform

__all__ = ["check", "prioritized", "slices", "uniform"]

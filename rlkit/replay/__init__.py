"""Replay buffers as pure functions on states of arrays: uniform, prioritized, and slices of episodes.

In a jitted loop, add first; then sample and update, as often as wanted. To add what does not depend on all that was
sampled before it in the same iteration makes XLA copy the buffer, so that the sample could still be read from it.
"""

from rlkit.replay.invariants import check
from rlkit.replay.prioritized_buffer import prioritized
from rlkit.replay.slice_buffer import slices
from rlkit.replay.uniform_buffer import uniform

__all__ = ["check", "prioritized", "slices", "uniform"]

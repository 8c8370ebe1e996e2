"""Replay buffers as pure functions on states of arrays: uniform, prioritized, and slices of episodes."""

from rlkit.replay.invariants import check
from rlkit.replay.prioritized_buffer import prioritized
from rlkit.replay.slice_buffer import slices
from rlkit.replay.uniform_buffer import uniform

__all__ = ["check", "prioritized", "slices", "uniform"]

"""Checkpoints of runs, and of any state."""

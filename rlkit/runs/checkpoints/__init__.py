"""Checkpoints: states of runs and of anything else on disk, whole or absent, verified before use."""

"""Greedy policies of runs as files that other programs read, without rlkit."""

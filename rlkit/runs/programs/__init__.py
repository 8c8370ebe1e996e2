"""Compiled programs of a run: environments in JAX, environments in worker processes, datasets."""

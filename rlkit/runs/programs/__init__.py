"""Compiled programs of a run: environments in JAX or in worker processes, each online or learning from a dataset."""

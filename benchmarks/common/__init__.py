"""Helpers that the benchmarks share; each script puts `benchmarks/` on its path to import them."""

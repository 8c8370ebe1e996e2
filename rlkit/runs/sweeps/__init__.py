"""Sweeps: many trials of a config, as few programs, with successive halving, in a folder that survives anything."""

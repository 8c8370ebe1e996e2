"""Environments: `make` one by its name, `wrap` it, `check` it; the wrappers and the probes by themselves."""

from rlkit.envs.registry import make, names

__all__ = ["make", "names"]

"""Environments: `make` one by its name, `wrap` it, `check` it; the wrappers and the probes by themselves."""

from rlkit.envs import probes, wrappers
from rlkit.envs.checks import check
from rlkit.envs.registry import make, names, wrap

__all__ = ["check", "make", "names", "probes", "wrap", "wrappers"]

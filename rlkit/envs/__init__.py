"""Environments: make one by name, adapt your own, wrap it and check it; wrappers and probe environments."""

from rlkit.envs import probes, wrappers
from rlkit.envs.checks import check
from rlkit.envs.registry import make, names, wrap
from rlkit.envs.suites.legacy import adapt

__all__ = ["adapt", "check", "make", "names", "probes", "wrap", "wrappers"]

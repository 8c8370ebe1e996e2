"""Environments: `make` one by its name, `adapt` your own, `wrap` it, `check` it; the wrappers and the probes."""

from rlkit.envs import probes, wrappers
from rlkit.envs.checks import check
from rlkit.envs.registry import make, names, wrap
from rlkit.envs.suites.legacy import adapt

__all__ = ["adapt", "check", "make", "names", "probes", "wrap", "wrappers"]

"""rlkit: a JAX-first functional reinforcement-learning toolkit.

The names below are handed on from where they live and are imported when first used: `import rlkit` stays instant.
"""

import importlib
from typing import Any

_MODULES = ("agents", "envs", "networks", "ops", "replay", "runs", "training", "types")
_NAMES = {"load": "rlkit.runs", "ConfigError": "rlkit.types", "use_cpu_cores": "rlkit.runs"}

__all__ = [
    "ConfigError",
    "agents",
    "envs",
    "load",
    "networks",
    "ops",
    "replay",
    "runs",
    "training",
    "types",
    "use_cpu_cores",
]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rlkit.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'rlkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

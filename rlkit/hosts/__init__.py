"""Environments outside of JAX: pools of them in other processes, and the collection of their transitions.

The names are imported when first used, so that worker processes do not import JAX.
"""

import importlib
from typing import Any

_NAMES = {
    "HostError": "failure",
    "Pool": "pool",
    "Step": "pool",
    "VectorPool": "vector",
    "is_host": "registry",
    "is_own": "registry",
    "make": "registry",
    "from_vector": "registry",
}

__all__ = [*_NAMES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"rlkit.hosts.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'rlkit.hosts' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

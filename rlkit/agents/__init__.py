"""The registry of agents: each module of this package is an algorithm, and what several share is in `common`."""

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from rlkit.names import did_you_mean
from rlkit.spaces import Space
from rlkit.types import ConfigError


@cache
def names() -> tuple[str, ...]:
    """The names of all agents, sorted: those of this package's modules."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))


def get(name: str) -> ModuleType:
    """The module of an agent, with its `Config`, `Hyper` and `make`.

    Raises:
      ConfigError: no agent has this name.
    """
    if name not in names():
        suggestion = did_you_mean(name, names()) or f"; try {names()[0]}"
        raise ConfigError(f"agent={name!r} must be one of {', '.join(names())}{suggestion}")
    return importlib.import_module(f"{__name__}.{name}")


def supporting(action_space: Space) -> tuple[str, ...]:
    """The names of the agents that can act in an action space, sorted. Imports every agent."""
    return tuple(name for name in names() if get(name).supports(action_space))


__all__ = ["get", "names", "supporting"]

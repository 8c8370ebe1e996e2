"""The agents, one file an algorithm, and the registry that finds them by name."""

import difflib
import importlib
from types import ModuleType

from rlkit.types import ConfigError

NAMES = ("ppo", "dqn", "c51", "qrdqn", "pqn", "r2d2", "sac", "td3", "iql", "td3_bc")
REGISTRY: dict[str, str] = {name: f"rlkit.agents.{name}" for name in NAMES}


def get(name: str) -> ModuleType:
    """The module of an agent, with its `Config`, `Hyper` and `make`; ConfigError for a name not registered."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(str(name), REGISTRY, 1, 0.0)
        raise ConfigError(f"agent={name!r} must be one of {', '.join(sorted(REGISTRY))}; did you mean {near[0]!r}?")
    return importlib.import_module(REGISTRY[name])


__all__ = ["REGISTRY", "get"]

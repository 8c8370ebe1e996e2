"""The agents, one file an algorithm, and the registry that finds them by name."""

import difflib
import importlib
from types import ModuleType

from rlkit.types import ConfigError

REGISTRY: dict[str, str] = {name: f"rlkit.agents.{name}" for name in ("ppo", "dqn", "c51", "qrdqn")}


def get(name: str) -> ModuleType:
    """The module of an agent, with its `Config`, `Hyper` and `make`; ConfigError for a name not registered."""
    if name not in REGISTRY:
        near = difflib.get_close_matches(str(name), REGISTRY, 1, 0.0)
        raise ConfigError(f"agent={name!r} must be one of {', '.join(sorted(REGISTRY))}; did you mean {near[0]!r}?")
    return importlib.import_module(REGISTRY[name])


__all__ = ["REGISTRY", "get"]

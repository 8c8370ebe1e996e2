"""The registry of agents: each module of this package is an algorithm, and what several share is in `common`.

An agent of your own is made of the classes in `base`, and has the name `module:make` here.
"""

import importlib
import pkgutil
import sys
from functools import cache
from typing import Any, NamedTuple

from rlkit.names import OWN_CODE, UnknownName, did_you_mean, find_object, raised
from rlkit.spaces import Space
from rlkit.types import ConfigError


@cache
def names() -> tuple[str, ...]:
    """The names of all agents, sorted: those of this package's modules."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))


def get(name: str) -> Any:
    """The module of an agent, with its `Config`, `Hyper` and `make`; of a name `module:name`, the user's own three.

    `module:name` is a function `make` whose module has the classes `Config` and `Hyper`, or an object with all three.

    Raises:
      ConfigError: no agent has this name, or one of the three is missing.
    """
    if OWN_CODE.fullmatch(name):
        return _own(name)
    if name not in names():
        suggestion = did_you_mean(name, names()) or f"; try {names()[0]}, or module:make for an agent of your own"
        raise ConfigError(f"agent={name!r} must be one of {', '.join(names())}{suggestion}")
    return importlib.import_module(f"{__name__}.{name}")


class _Own(NamedTuple):
    """An agent of the user's own."""

    Config: Any
    Hyper: Any
    make: Any


def _own(name: str) -> _Own:
    """The user's own agent of this name. Raises ConfigError where a part is missing or of another kind."""
    from rlkit.agents import base

    try:
        found = find_object(name)
    except UnknownName as error:
        raise ConfigError(f"agent={name!r}: {error}") from None
    except Exception as error:
        raise ConfigError(f"agent={name!r}: its module raised {raised(error)}") from error
    home, place = found, name
    if callable(found) and not hasattr(found, "make"):
        named = sys.modules.get(name.partition(":")[0])  # which may have made `make` of another module's
        home = named if hasattr(named, "Config") else sys.modules.get(getattr(found, "__module__", ""))
        place = f"module {getattr(home, '__name__', None)!r}"
    own = _Own(getattr(home, "Config", None), getattr(home, "Hyper", None), getattr(found, "make", found))
    for kind, wanted in (("Config", base.Config), ("Hyper", base.Hyper)):
        if not (isinstance(cls := getattr(own, kind), type) and issubclass(cls, wanted)):
            raise ConfigError(
                f"agent={name!r} needs a class {kind} in {place}, derived from rlkit.agents.base.{kind}; add it"
            )
    if not callable(own.make):
        raise ConfigError(f"agent={name!r} needs a function make(config, obs_space, action_space) -> Agent; add it")
    return own


def supporting(action_space: Space) -> tuple[str, ...]:
    """The names of the agents that can act in an action space, sorted. Imports every agent."""
    return tuple(name for name in names() if get(name).supports(action_space))


__all__ = ["get", "names", "supporting"]

"""Errors in one line for values of an agent's `Config` and `Hyper` that are given in Python."""

import dataclasses
import math
import operator as op
import re
import typing
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np
from annotated_types import Interval
from pydantic import BaseModel, ValidationError

from rlkit import agents
from rlkit.names import did_you_mean, shorten
from rlkit.types import ConfigError

UNSET = np.float32(-np.inf)  # in the arrays of a Hyper, of a field that is None and that no default replaces
_BOUNDS = (
    ("gt", "greater than", op.gt),
    ("ge", "at least", op.ge),
    ("lt", "less than", op.lt),
    ("le", "at most", op.le),
)


def class_name(cls: type) -> str:
    """The name of a class with that of its module, as `ppo.Config`."""
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def explain(cls: type[BaseModel], error: ValidationError) -> str:
    """Return the first problem of a Config's validation as one line, with the number of the others."""
    problems = error.errors(include_url=False)
    first, name = problems[0], ".".join(map(str, problems[0]["loc"]))
    if first["type"] == "extra_forbidden":
        line = unknown_field(name, cls, cls.model_fields)
    elif not name:  # a rule between fields, in the model's own words
        line = first["msg"].removeprefix("Value error, ")
    else:
        rule = re.sub(r"^(Input|Value|[A-Z][a-z]+) should |^Value error, ", "must ", first["msg"])
        line = f"{name}={shorten(repr(first['input']))} {rule}; the default is "
        line += repr(cls.model_fields[str(first["loc"][0])].default)
    return line + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def unknown_field(name: str, cls: type, known: Collection[str]) -> str:
    """Return the line for a name that is no field of an agent's Config or Hyper; it may be a field of the other one."""
    agent, kind = _agent(cls), "Hyper" if issubclass(cls, BaseModel) else "Config"
    other = getattr(agents.get(agent), kind) if agent is not None else None
    if other is not None and name in getattr(other, "model_fields", getattr(other, "__dataclass_fields__", ())):
        remedy = f"; it is a field of {agent}.{kind}"
    else:
        remedy = did_you_mean(name, known)
    return f"{name} is not a field of {class_name(cls)}{remedy}"


def _agent(cls: type) -> str | None:
    """The agent whose Config or Hyper a class is, or is derived from."""
    names = (base.__module__.removeprefix("rlkit.agents.") for base in cls.__mro__)
    return next((name for name in names if name in agents.names()), None)


@cache
def _limits(cls: type) -> dict[str, tuple[Interval, float | None]]:
    """The range and the default of each field of a Hyper."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        ranges = [entry for entry in getattr(hints[field.name], "__metadata__", ()) if isinstance(entry, Interval)]
        default: Any = field.default
        found[field.name] = (ranges[-1] if ranges else Interval(), None if default is None else float(default))
    return found


def check_values(hyper: Any, values: dict[str, float]) -> None:
    """Raise a ConfigError where one of the known values of a Hyper, by name, is out of range."""
    for name, limits in _limits(type(hyper)).items():
        if name in values:
            _check(name, values[name], *limits)


def _check(name: str, value: float, limits: Interval, default: float | None) -> None:
    """Raise a ConfigError where a value is out of range, and not that of a field which is not set."""
    rules = [(words, bound, holds) for key, words, holds in _BOUNDS if (bound := getattr(limits, key)) is not None]
    within = not math.isnan(value) and all(holds(value, bound) for _, bound, holds in rules)
    if within or (default is None and value == UNSET):
        return
    finite = [f"{words} {bound:g}" for words, bound, _ in rules if math.isfinite(bound)]
    finite += ["finite"] if len(finite) < len(rules) or math.isnan(value) else []
    remedy = "the default is None" if default is None else f"the default is {default:g}"
    raise ConfigError(f"{name}={value:g} must be {' and '.join(finite)}; {remedy}")


def check_config(agent: str, config: Any) -> None:
    """Raise a ConfigError unless `config` is that of the agent with this name, or derived from it."""
    _check_class(agent, "Config", config)


def check_hyper(config: Any, hyper: Any) -> None:
    """Raise a ConfigError unless `hyper` is that of the agent whose Config this is, or derived from it."""
    if (agent := _agent(type(config))) is not None:
        _check_class(agent, "Hyper", hyper)


def _check_class(agent: str, kind: str, value: Any) -> None:
    wanted = getattr(agents.get(agent), kind)
    if not isinstance(value, wanted):
        raise ConfigError(
            f"agent={agent!r} needs a {kind} of its own, and this is {class_name(type(value))}; use {agent}.{kind}(...)"
        )

"""Validation of an agent's `Config` and `Hyper`, with errors in one line."""

import dataclasses
import math
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterator
from functools import cache
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from rlkit.agents.base.keys import stated
from rlkit.names import did_you_mean, shorten
from rlkit.types import ConfigError

UNSET = np.float32(-np.inf)  # in the arrays of a Hyper, of a field that is None and that no default replaces
_BOUNDS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
_RULES = {  # by pydantic's type of the error
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a word",
    "dict_type": "must be a mapping, such as {name: value}",
}
_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")


def class_name(cls: type) -> str:
    """The name of a class with that of its module, as `ppo.Config`."""
    return f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def limits(field: Any) -> Iterator[tuple[str, float]]:
    """Yield each bound of a pydantic field with its name (gt, ge, lt, le), also within a tuple or `int | None`."""
    for rule in (*field.metadata, *stated(field.annotation)):
        yield from ((bound, limit) for bound in _BOUNDS if (limit := getattr(rule, bound, None)) is not None)


def _python(value: Any) -> str:
    """A value as it is written in Python, shortened."""
    return f"{value:g}" if isinstance(value, float) else shorten(repr(value))


def explain(model: type[BaseModel], error: ValidationError, show: Callable[[Any], str] = _python) -> str:
    """Return the first problem of a validation as one line, with the number of the others.

    Args:
      model: that was validated.
      error: of the validation.
      show: text of a value.
    """
    problems = error.errors(include_url=False)
    first, more = problems[0], len(problems) - 1
    words = map(str, first["loc"])
    key = ".".join(word if re.fullmatch(r"[\w.-]{1,60}", word) else show(word) for word in words)
    field = model.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    if first["type"] == "extra_forbidden":
        line = unknown_field(key, model, model.model_fields)
    elif first["type"] == "missing":
        line = is_missing(key, field)
    elif first["loc"][-1:] == ("[key]",):  # pydantic's sign for a mistake in the key of a mapping
        line = f"{key.removesuffix(show('[key]')).rstrip('.')}: a key must be a word; put it in quotes"
    elif field is None:  # a rule between fields, in the model's own words
        line = first["msg"].removeprefix("Value error, ")
    else:
        line = f"{key}={show(first['input'])} {_rule(first, field, show)}"
        if not field.is_required():
            line += f"; the default is {show(field.get_default(call_default_factory=True))}"
    return " ".join(line.split()) + (f" (and {more} more)" if more else "")


def _rule(problem: Any, field: Any, show: Callable[[Any], str]) -> str:
    """The rule that a value breaks."""
    kind = problem["type"]
    if kind in _OUT_OF_RANGE and (bounds := dict(limits(field))):
        finite = [f"{_BOUNDS[bound]} {limit:.15g}" for bound, limit in bounds.items() if math.isfinite(limit)]
        return f"must be {' and '.join(finite + ['finite'] * (len(finite) < len(bounds)))}"
    if kind in ("tuple_type", "list_type"):
        example = (64, 64) if any(limits(field)) else ("a", "b")  # of numbers, or of words
        return f"must be a list, such as {show(field.get_default() or example)}"
    if kind == "none_required":
        return f"must be {show(None)}"
    if kind == "value_error":
        return str(problem.get("ctx", {}).get("error", problem["msg"]))
    return _RULES.get(kind) or re.sub(r"^(Input|Value|[A-Z][a-z]+) should ", "must ", problem["msg"])


def is_missing(key: str, field: Any) -> str:
    """Return the text on a key that a config must have and has not; `field` is pydantic's, or None."""
    return f"{key} is missing; add it: {field.description if field else ''}"


def unknown_field(name: str, cls: type, known: Collection[str]) -> str:
    """Return the line for a name that is no field of an agent's Config or Hyper; it may be a field of the other one."""
    kind = "Hyper" if issubclass(cls, BaseModel) else "Config"
    agent = _agent(cls)
    other = getattr(agent, kind, None)
    if other is not None and name in getattr(other, "model_fields", getattr(other, "__dataclass_fields__", ())):
        remedy = f"; it is a field of {class_name(other)}"
    else:
        remedy = did_you_mean(name, known)
    return f"{name} is not a field of {class_name(cls)}{remedy}"


def _agent(cls: type) -> ModuleType | None:
    """The module of the agent whose Config or Hyper a class is, or is derived from; None where there is none."""
    modules = (sys.modules.get(base.__module__) for base in cls.__mro__)
    return next((m for m in modules if m and all(hasattr(m, name) for name in ("Config", "Hyper", "make"))), None)


@cache
def model_of(hyper: type) -> type[BaseModel]:
    """Return a pydantic model of an agent's Hyper: floats, with the ranges and texts of its annotations."""
    hints = typing.get_type_hints(hyper, include_extras=True)
    models: dict[str, Any] = {}
    for field in dataclasses.fields(hyper):
        facts = typing.get_args(hints[field.name])[1:] if hasattr(hints[field.name], "__metadata__") else ()
        description = " ".join(fact for fact in facts if isinstance(fact, str)) or None
        default: Any = field.default
        kind, default = (float | None, None) if default is None else (float, float(default))
        ranges = [fact for fact in facts if not isinstance(fact, str)]
        models[field.name] = (
            Annotated[kind, *ranges, AfterValidator(_check_float32)],
            Field(default=default, description=description),
        )
    return create_model("Hyper", __config__=ConfigDict(frozen=True, extra="forbid", strict=True), **models)


def _check_float32(value: float | None) -> float | None:
    """Raise ValueError unless a number is within the range of float32; infinity is."""
    if value is None:
        return None
    with np.errstate(over="ignore", under="ignore"):
        cast = float(np.float32(value))
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    if math.isinf(cast) != math.isinf(value) or (cast == 0) != (value == 0):
        raise ValueError("must be within the range of float32")
    return value


def check_values(hyper: Any, values: dict[str, Any]) -> None:
    """Raise a ConfigError where one of the known values of a Hyper, by name, is out of range."""
    model = model_of(type(hyper))
    unset = {name for name, field in model.model_fields.items() if field.default is None and values.get(name) == UNSET}
    try:
        model.model_validate({name: value for name, value in values.items() if name not in unset})
    except ValidationError as error:
        raise ConfigError(explain(model, error)) from None


def check_config(config_class: type, config: Any) -> None:
    """Raise a ConfigError unless `config` is of an agent's class `Config`, or of one that is derived from it."""
    _check_class(config_class, config)


def check_hyper(config: Any, hyper: Any) -> None:
    """Raise a ConfigError unless `hyper` is that of the agent whose Config this is, or derived from it."""
    if (agent := _agent(type(config))) is not None:
        _check_class(agent.Hyper, hyper)


def agent_name(config_class: type) -> str:
    """Return the name of the agent whose class `Config` this is: that of its module."""
    return config_class.__module__.rpartition(".")[2]


def _check_class(wanted: type, value: Any) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(
            f"agent={agent_name(wanted)!r} needs a {wanted.__name__} of its own, and this is "
            f"{class_name(type(value))}; use {class_name(wanted)}(...)"
        )

"""The keys of a config in text: values, types, ranges and meanings, for `--help`."""

import typing
from collections.abc import Callable, Mapping
from typing import Any

from rlkit.agents.base.mistakes import limits
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schema import schema


def describe_keys(config: RunConfig, chosen: Callable[[str], bool] = lambda key: True) -> str:
    """Return the chosen keys of a config with their values, types or ranges, and meaning; one line a key."""
    values, lines = config.flat(), []
    for title, model in zip(("run", "agent", "agent, may be swept"), schema(config.run.agent).models, strict=True):
        fields = {name: field for name, field in model.model_fields.items() if chosen(name)}
        lines += [f"\n{title}:"] if fields else []
        lines += describe_fields(fields, values)
    return "\n".join(lines).lstrip("\n")


def describe_fields(fields: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return a line of text for each field of a pydantic model, with its value."""
    lines = []
    for name, field in fields.items():
        left = f"  --{name} {value_text(values[name])}"
        kind = f"{type_text(field.annotation)} {limits_text(field)}".strip()
        lines.append(f"{left:<44} {kind}" + (f"; {field.description}" if field.description else ""))
    return lines


def value_text(value: Any) -> str:
    """A value as it is written in YAML."""
    return show_value(value) if value is None or isinstance(value, bool) else str(value)


def limits_text(field: Any) -> str:
    """The limits of a field as text: `> 0, <= 1`."""
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return ", ".join(f"{signs[bound]} {limit:.15g}" for bound, limit in limits(field))


def type_text(annotation: Any) -> str:
    """An annotation as text: `int | null`, `mlp | conv`, `[int, ...]`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is tuple:
        return f"[{type_text(arguments[0])}, ...]"
    if arguments and origin is not dict:
        return " | ".join(type_text(argument) for argument in arguments)
    return {type(None): "null"}.get(annotation, getattr(origin or annotation, "__name__", str(annotation)))

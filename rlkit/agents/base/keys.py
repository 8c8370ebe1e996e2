"""Facts about the keys of a config, stated where a class declares them: `Annotated[type, range, fact, ...]`.

`Config`, `Hyper` and the settings of a run state them alike. Errors, resumed runs and sweeps read them there.
A range is an `annotated_types.Interval`; a text is shown by `--help`.
"""

import inspect
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any


class Unused:
    """States that a key has no effect where a setting has this value, or one of this type or these types.

    A function in place of the value returns true for such a setting.
    """

    def __init__(self, **settings: Any):
        self.settings = settings

    def reason(self, settings: Mapping[str, Any]) -> str | None:
        """Return the name of the setting because of which the key has no effect; None where it has one."""
        for name, value in self.settings.items():
            setting = settings.get(name)
            if isinstance(value, type | tuple):
                unused = isinstance(setting, value)
            else:
                unused = value(setting) if callable(value) else setting == value
            if unused:
                return name
        return None


class StartOnly:
    """Marks a field of `Hyper` that `init` alone reads, as the state has a value of its own that learning changes."""


class LearningRate:
    """Marks a field of `Hyper` that the schedule scales."""


class Stays:
    """Marks a setting that must not change once a run has begun."""


@cache
def facts(cls: type) -> dict[str, tuple[Any, ...]]:
    """Return the facts about each field of a class; where several bases declare a field, their facts are joined."""
    found: dict[str, tuple[Any, ...]] = {}
    for base in reversed(cls.__mro__):
        if not (getattr(base, "model_fields", None) or "__dataclass_fields__" in vars(base)):
            continue  # a base of pydantic or flax
        for name, annotation in inspect.get_annotations(base, eval_str=True).items():
            found[name] = (*found.get(name, ()), *stated(annotation))
    return found


@cache
def marked(cls: type, mark: type) -> tuple[str, ...]:
    """Return the fields of a class that have a mark, such as `StartOnly`, those of its bases first."""
    return tuple(name for name, found in facts(cls).items() if mark in found)


def stated(annotation: Any) -> list[Any]:
    """Return the entries of an annotation that are no types, of nested ones too: of `Annotated[int, fact] | None`."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return [*stated(parts[0]), *annotation.__metadata__]
    return [fact for part in parts for fact in stated(part)] if typing.get_origin(annotation) else []

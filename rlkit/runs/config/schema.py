"""The schema of an agent's configs: the keys of the run, of the agent's Config and of its Hyper.

Types, ranges and defaults are read from those three classes, each of which states them once.
"""

import dataclasses
import math
import typing
from functools import cache
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model

from rlkit import agents
from rlkit.names import did_you_mean
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.settings import Settings
from rlkit.types import ConfigError


class Schema(typing.NamedTuple):
    """The keys that a config of one agent may hold."""

    models: tuple[type[BaseModel], type[BaseModel], type[BaseModel]]  # run, agent Config, agent Hyper
    fields: dict[str, Any]  # name -> pydantic field, of all three in their order


@cache
def schema(agent: str) -> Schema:
    """Return the schema of an agent's configs. Raises ConfigError for a name that is not in the registry."""
    known = agents.names()
    if agent not in known:
        raise ConfigError(f"agent={show_value(agent)} must be one of {', '.join(known)}{did_you_mean(agent, known)}")
    module = agents.get(agent)
    models = (Settings, module.Config, _hyper_model(module.Hyper))
    return Schema(models, {name: field for model in models for name, field in model.model_fields.items()})


def _hyper_model(hyper: type) -> type[BaseModel]:
    """A pydantic model of an agent's Hyper: its float fields, with the limits and descriptions in their annotations."""
    hints = typing.get_type_hints(hyper, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(hyper):
        metadata = typing.get_args(hints[field.name])[1:]
        limits = [entry for entry in metadata if not isinstance(entry, str)]
        description = " ".join(entry for entry in metadata if isinstance(entry, str)) or None
        default = getattr(hyper, field.name)
        kind, default = (float | None, None) if default is None else (float, float(default))
        info = Field(default=default, description=description)
        fields[field.name] = (Annotated[kind, *limits, AfterValidator(_check_float32)], info)
    return create_model("Hyper", __config__=ConfigDict(frozen=True, extra="forbid", strict=True), **fields)


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

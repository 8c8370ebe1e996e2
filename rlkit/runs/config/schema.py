"""The schema of an agent's configs: the keys of the run, of the agent's Config and of its Hyper.

Types, ranges and defaults are read from those three classes, each of which states them once.
"""

from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from rlkit import agents
from rlkit.agents.base.mistakes import model_of
from rlkit.runs.config.settings import Settings


class Schema(NamedTuple):
    """The keys that a config of one agent may hold."""

    models: tuple[type[BaseModel], type[BaseModel], type[BaseModel]]  # run, agent Config, agent Hyper
    fields: dict[str, Any]  # name -> pydantic field, of all three in their order


def schema(agent: str) -> Schema:
    """Return the schema of an agent's configs. Raises ConfigError for a name that is not in the registry."""
    module = agents.get(agent)
    return _schema(module.Config, module.Hyper)


@cache
def _schema(config: type[BaseModel], hyper: type) -> Schema:
    models = (Settings, config, model_of(hyper))
    return Schema(models, {name: field for model in models for name, field in model.model_fields.items()})

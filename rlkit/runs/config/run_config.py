"""Configs: one flat YAML file whose keys are those of the run, of the agent's Config and of its Hyper.

Types, ranges and defaults are read from those three, where they stand once. Every mistake is a ConfigError of one line:
key, value, rule, remedy.
"""

import dataclasses
import difflib
import math
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from rlkit import agents, envs
from rlkit.hosts.registry import checked_name, is_host, is_own
from rlkit.runs import files
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.settings import Settings
from rlkit.types import ConfigError


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A validated config: what the run, the agent's program and its traced scalars are set to."""

    run: Settings
    agent: Any  # the agent's Config
    hyper: Mapping[str, float]  # the fields of the agent's Hyper
    name: str = "run"  # where it came from; names the run directory

    @property
    def steps_per_update(self) -> int:
        return self.run.num_envs * self.run.num_steps

    @property
    def num_updates(self) -> int:
        """Updates in all: total_steps in whole updates, rounded up."""
        return -(-self.run.total_steps // self.steps_per_update)

    @property
    def updates_per_line(self) -> int:
        """Updates between metric lines, at least one."""
        every = self.run.log_every or -(-self.run.total_steps // 100)
        return min(max(1, every // self.steps_per_update), self.num_updates)

    def flat(self) -> dict[str, Any]:
        """Every key with its value, in the order of the schema; `parse` of it gives this config again."""
        values = {**self.run.model_dump(), **self.agent.model_dump(), **self.hyper}
        return {name: _thaw(values[name]) for name in schema(self.run.agent).fields}

    def resolved(self) -> str:
        """YAML text that trains again identically; schedules that end with the run do so, too, if it is made longer."""
        values = self.flat()
        if values.get("schedule_steps") == values["total_steps"]:
            del values["schedule_steps"]
        if values.get("dataset") is not None and not values["dataset"].startswith("minari:"):
            values["dataset"] = os.path.abspath(values["dataset"])
        return strict_yaml.dump(values)


class Schema(typing.NamedTuple):
    """The keys that a config of one agent may hold."""

    models: tuple[type[BaseModel], type[BaseModel], type[BaseModel]]  # run, agent Config, agent Hyper
    fields: dict[str, Any]  # of all three, in their order


def _float32(value: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        cast = float(np.float32(value))
    if math.isnan(value):
        raise ValueError("must be a number, not NaN")
    if math.isinf(cast) != math.isinf(value) or (cast == 0) != (value == 0):
        raise ValueError("must be within the range of float32")
    return value


@cache
def schema(agent: str) -> Schema:
    """The schema of an agent's configs. Raises ConfigError for a name that is not in the registry."""
    if agent not in agents.names():
        known = ", ".join(agents.names())
        raise ConfigError(f"agent={_show(agent)} must be one of {known}{_nearest(agent, agents.names())}")
    module = agents.get(agent)
    hints = typing.get_type_hints(module.Hyper, include_extras=True)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(module.Hyper):
        limits = [note for note in typing.get_args(hints[field.name])[1:] if not isinstance(note, str)]
        notes = [note for note in typing.get_args(hints[field.name])[1:] if isinstance(note, str)]
        info = Field(float(getattr(module.Hyper, field.name)), description=" ".join(notes) or None)
        fields[field.name] = (Annotated[float, *limits, AfterValidator(_float32)], info)
    hyper = create_model("Hyper", __config__=ConfigDict(frozen=True, extra="forbid", strict=True), **fields)
    models = (Settings, module.Config, hyper)
    return Schema(models, {name: field for model in models for name, field in model.model_fields.items()})


def load_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a file: a path, or a name such as ppo/cartpole in ./configs or in the package.

    Args:
      source: path or name, with or without .yaml.
      overrides: keys that replace those of the file; `env_kwargs.NAME` replaces one entry.

    Raises:
      ConfigError: there is no such file, it cannot be read, or it holds a mistake.
    """
    path = find(source)
    values = read(path)
    named = values.get("env")
    if isinstance(named, str) and is_own(named) and "env" not in (overrides or {}):
        raise ConfigError(f"env={_show(named)} is code, and no file may name code to run; add --env {named[:80]}")
    for key, value in (overrides or {}).items():
        outer, dot, inner = key.partition(".")
        if dot and isinstance(values.get(outer, {}), dict):
            values[outer] = {**values.get(outer, {}), inner: value}
        else:
            values[key] = value
    return parse(values, name="-".join([path.parent.name, path.stem]) if path.parent.name else path.stem)


def read(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file. Raises ConfigError where it holds none."""
    try:
        values = strict_yaml.parse(files.read(path.resolve(), strict_yaml.MAX_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"config={str(path)!r} must be a readable file: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"config={str(path)!r} must be UTF-8 text, and it is not; save it as UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"config={str(path)!r} must be flat YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"config={str(path)!r} must hold `key: value` lines, and it does not; start from a known one")
    return values


def parse(values: Mapping[Any, Any], *, name: str = "run") -> RunConfig:
    """Validate a flat mapping of keys to values.

    Raises:
      ConfigError: a key is unknown or missing, or a value has the wrong type, is out of range or does not fit others.
    """
    agent = values.get("agent")
    if not isinstance(agent, str):
        said = f"agent={_show(agent)}" if "agent" in values else "agent"
        raise ConfigError(f"{said} must be the name of an agent; add e.g. agent: ppo")
    known = schema(agent)
    for key in values:
        if key not in known.fields:
            raise ConfigError(f"{_key(key)} is not a key of a {agent} config{_nearest(key, known.fields)}")
    given = {key: _freeze(value, known.fields[key].annotation) for key, value in values.items()}
    if "schedule_steps" in known.fields and "total_steps" in given:
        given.setdefault("schedule_steps", given["total_steps"])  # the schedules end with the run
    parts = [_validate(model, given) for model in known.models]
    config = RunConfig(parts[0], parts[1], MappingProxyType(parts[2].model_dump()), name)
    _check(config)
    return config


def _check(config: RunConfig) -> None:
    """The rules between keys of the run."""
    run, batch = config.run, config.steps_per_update
    if batch >= 2**31:
        fits = max(1, 2**30 // run.num_steps)
        raise ConfigError(f"num_envs={run.num_envs} times num_steps={run.num_steps} must be below {2**31}; try {fits}")
    if run.total_steps < batch:
        raise ConfigError(
            f"total_steps={run.total_steps} must be at least num_envs * num_steps = {batch}, one update; try {batch}"
        )
    if config.num_updates >= 2**31:
        raise ConfigError(f"total_steps={run.total_steps} must be below {2**31} updates; try {batch * (2**31 - 1)}")
    if run.seed + run.num_seeds > 2**31:
        raise ConfigError(f"seed={run.seed} must leave room for num_seeds={run.num_seeds}; try {2**31 - run.num_seeds}")
    if is_host(run.env[:200]):
        checked_name(run.env[:200])
    elif run.env not in envs.names():
        envs.make(run.env[:80])  # raises, saying why not
    for key, value in run.env_kwargs.items():
        if not isinstance(value, bool | int | float | str | tuple):
            raise ConfigError(f"env_kwargs.{_key(key)}={_show(value)} must be a number, a word or a list")


def _validate(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    own = {key: value for key, value in values.items() if key in model.model_fields}
    try:
        return model.model_validate(own, strict=True)
    except ValidationError as error:
        raise ConfigError(_explain(model, error)) from None


def _explain(model: type[BaseModel], error: ValidationError) -> str:
    """One line for the first problem, and how many more there are."""
    problems = error.errors(include_url=False)
    first, more = problems[0], len(problems) - 1
    rule = re.sub(r"^(Input|Value|Value error,|[A-Z][a-z]+) should |^Value error, ", "must ", first["msg"])
    key = ".".join(_key(part) for part in first["loc"])
    field = model.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    if first["type"] == "missing":
        line = f"{key} is missing; add it: {field.description if field else ''}"
    elif field is None:  # a rule between fields, in the model's own words
        line = re.sub(r"^Value error, ", "", first["msg"])
    else:
        if first["type"] == "value_error":
            rule = str(first.get("ctx", {}).get("error", rule))
        line = f"{key}={_show(first['input'])} {rule}"
        if not field.is_required():
            line += f"; the default is {_show(_thaw(field.default))}"
        elif field.description:
            line += f" ({field.description})"
    return " ".join(line.split()) + (f" (and {more} more)" if more else "")


def _freeze(value: Any, annotation: Any) -> Any:
    """Lists as tuples, and whole numbers such as 1e6 as ints where an int and no float is asked for."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, annotation) for item in value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        kinds = set(_kinds(annotation))
        return int(value) if int in kinds and float not in kinds else value
    if isinstance(value, dict):
        return {key: _freeze(item, Any) for key, item in value.items()}
    return value


def _kinds(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in typing.get_args(annotation):
        yield from _kinds(argument)


def _thaw(value: Any) -> Any:
    """Plain lists and dicts, for YAML."""
    if isinstance(value, tuple | list):
        return [_thaw(item) for item in value]
    return {key: _thaw(item) for key, item in value.items()} if isinstance(value, dict) else value


def _show(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:50]}..."


def _key(key: Any) -> str:
    return key if isinstance(key, str) and re.fullmatch(r"[\w.-]{1,60}", key) else _show(key)


def _nearest(word: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    """`; did you mean ...?`, or nothing."""
    found = difflib.get_close_matches(str(word)[:60], list(known), n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def folders() -> list[Path]:
    """Where configs are looked for: ./configs, then what the package carries, then the checkout's."""
    package = Path(__file__).resolve().parents[2]
    return [folder for folder in (Path("configs"), package / "configs", package.parent / "configs") if folder.is_dir()]


def names() -> list[str]:
    """The names of the configs that `find` knows, such as ppo/cartpole."""
    return sorted(
        {path.relative_to(folder).with_suffix("").as_posix() for folder in folders() for path in folder.rglob("*.yaml")}
    )


def find(source: str | Path) -> Path:
    """The file of a config.

    Args:
      source: a path; or a name such as ppo/cartpole, or configs/ppo/cartpole.yaml where there is no such folder.

    Raises:
      ConfigError: there is none; it names the nearest.
    """
    path = Path(source)
    try:
        if path.is_file():
            return path
        if path.is_dir() and (path / files.CONFIG).is_file():
            return path / files.CONFIG  # a run directory: its resolved config
        name = path.as_posix().removesuffix(".yaml").removeprefix("configs/")
        if name in names():
            return next(found for folder in folders() if (found := folder / f"{name}.yaml").is_file())
    except (OSError, ValueError):  # too long, or a zero byte
        name = ""
    near = _nearest(name, names()) or f"; there is {', '.join(names()[:12])}"
    raise ConfigError(f"config={_show(str(source))} must be a file or the name of a config{near}")

"""The config of a sweep: one flat file with the base config, its keys, the values to try, and how to try them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rlkit import agents
from rlkit.names import did_you_mean
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.errors import by_value, show_value
from rlkit.runs.config.load import agent_alone, find, read, with_overrides
from rlkit.runs.config.own_code import is_own, refuse_in_file
from rlkit.runs.config.parse import freeze, parse, validated
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.config.schema import schema
from rlkit.runs.config.settings import Settings
from rlkit.runs.sweeps.space import Dimension, is_dimension, parse_dimension
from rlkit.types import ConfigError

MAX_TRIALS = 2**16


class SweepSettings(BaseModel):
    """Settings of a sweep: which values it tries. Steps are environment steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    config: str = Field(
        description="the base config: a file, a name such as ppo/cartpole, or that of an agent, with env"
    )
    trials: Annotated[int, Interval(ge=1, le=MAX_TRIALS)] = Field(
        default=16, description="number of trials; a grid has its own"
    )
    seeds_per_trial: Annotated[int, Interval(ge=1, le=2**10)] = Field(default=3, description="runs of each trial")
    sampler: Literal["random", "grid", "optuna"] = Field(default="random", description="how values are chosen")
    sampler_seed: Annotated[int, Interval(ge=0, le=2**31 - 1)] = Field(
        default=0, description="seed of random and optuna"
    )
    objective: Literal["final", "best", "area"] = Field(
        default="final", description="the greedy return that is scored: the last, the best, or the mean over the run"
    )
    halving: Annotated[int, Interval(ge=2, le=16)] | None = Field(
        default=None,
        description="successive halving: only one in so many trials goes on at each rung; null: all run to the end",
    )
    rungs: Annotated[int, Interval(ge=2, le=8)] = Field(
        default=3, description="rungs of halving, the end of the run included"
    )
    budget: PositiveInt | None = Field(
        default=None, description="most steps of all runs together; fewer trials are made"
    )
    runs_at_once: PositiveInt | None = Field(
        default=None, description="runs of one program; null for as many as memory holds"
    )
    batch: PositiveInt | None = Field(
        default=None, description="trials that optuna is asked for at once; null for an eighth of them, at most 16"
    )
    storage: str | None = Field(default=None, description="optuna's storage, a URL; null for a file of the sweep")
    study: str | None = Field(default=None, description="name of the study in a storage that several workers share")


class Sweep(NamedTuple):
    """A validated sweep."""

    settings: SweepSettings
    base: dict[str, Any]  # keys and values of the base config, as YAML has them
    dimensions: dict[str, Dimension]  # by key
    own_code: dict[str, Any]  # keys in no file: the user's own code; devices when going on
    name: str  # stem of the folder's name

    def resolved(self) -> str:
        """Return YAML text of the sweep without its base, which is a file beside it."""
        values: dict[str, Any] = self.settings.model_dump() | {"config": "base.yaml"}
        for key, dimension in self.dimensions.items():
            ends = [] if dimension.kind == "values" else dimension.ends()
            points = [dimension.points] if dimension.points else []
            values[key] = {dimension.kind: [*dimension.values, *ends, *points]}
        return strict_yaml.dump(values)

    def trial_config(self, values: Mapping[str, Any]) -> RunConfig:
        """Return the config of a trial with these values of the swept keys.

        Raises:
          ConfigError: the values do not fit together.
        """
        overrides = {**values, **self.own_code}
        refuse_in_file(self.base, overrides)
        config = parse(with_overrides(self.base, overrides))
        if self.settings.objective != "final" and not Schedule(config).ever_evaluates:
            raise ConfigError(
                f"eval_every={config.run.eval_every} leaves no evaluation before the end of total_steps="
                f"{config.run.total_steps}, and objective={self.settings.objective} would be that of final; try "
                f"eval_every: {max(config.run.total_steps // 20, 1)}"
            )
        return config


def load_sweep(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Load the sweep of a file, or of a sweep's folder.

    Args:
      source: a path, a folder, or a name such as sweeps/ppo_cartpole.
      overrides: keys that replace those of the file: of the sweep, of the base config, or values to try.

    Raises:
      ConfigError: there is no such file, or it holds a mistake.
    """
    path = Path(source) / "sweep.yaml" if (Path(source) / "sweep.yaml").is_file() else find(source)
    stored = read(path)
    if "config" not in stored:
        if "agent" in stored:
            raise ConfigError(
                f"config={show_value(str(source))} must be a sweep, and it is a run's; try rlkit train, or write a "
                f"file with config: {source} and the keys to try"
            )
        raise ConfigError(f"{path}: config is missing; add the base config, e.g. config: ppo/cartpole")
    for key, value in stored.items():
        items = next(iter(value.values())) if is_dimension(value) else [value]
        for item in items if isinstance(items, list) else []:
            refuse_in_file({key: item}, {})
    given = by_value(overrides or {})
    if "num_seeds" in given:  # --seeds
        given["seeds_per_trial"] = given.pop("num_seeds")
    values = {**stored, **given}
    if "num_seeds" in values:
        raise ConfigError("num_seeds is not a key of a sweep; write seeds_per_trial")
    codes = {key: value for key, value in given.items() if is_own(key, value)}
    if path.name == "sweep.yaml" and "devices" in given:  # it goes on, perhaps on another machine
        codes["devices"] = given["devices"]
    base = _base(str(values["config"]), path.parent)
    base.pop("num_seeds", None)  # seeds_per_trial is in its place
    refuse_in_file(base, {**stored, **codes})
    fields = SweepSettings.model_fields
    settings = {key: freeze(value, fields[key].annotation) for key, value in values.items() if key in fields}
    dimensions = parse_dimensions(values)
    others = values.keys() - settings.keys() - dimensions.keys() - codes.keys()
    base = with_overrides(base, {key: value for key, value in values.items() if key in others})
    parsed = validated(SweepSettings, settings)
    _check_keys([*base, *dimensions], codes.get("agent", base.get("agent")))
    _check(parsed, dimensions, base)
    if path.name != "sweep.yaml":
        _refuse_without_effect(parsed, values)
    name = path.parent.name if path.name == "sweep.yaml" else f"sweep-{path.stem}"
    if parsed.sampler == "optuna" and parsed.study is None:
        parsed = parsed.model_copy(update={"study": name})
    return Sweep(parsed, base, dimensions, codes, name)


def _base(name: str, folder: Path) -> dict[Any, Any]:
    """The keys of a base config: of a file, or of an agent alone, whose defaults each trial fills in."""
    if (folder / name).is_file():
        return read(folder / name)
    return {"agent": name} if agent_alone(name) in agents.names() else read(find(name))


def parse_dimensions(values: Mapping[str, Any]) -> dict[str, Dimension]:
    """Return the dimensions of a sweep's file by key. Raises ConfigError where the values of one have no meaning."""
    return {
        key: parse_dimension(key, value)
        for key, value in values.items()
        if is_dimension(value) and key not in SweepSettings.model_fields
    }


def _check_keys(keys: list[str], agent: Any) -> None:
    """Raise ConfigError for a key that is neither of the sweep nor of the base config."""
    known = schema(agent).fields if isinstance(agent, str) else {}
    for key in keys:
        if known and str(key).partition(".")[0] not in known:
            suggestion = did_you_mean(key, [*known, *SweepSettings.model_fields])
            raise ConfigError(f"{key} is not a key of a sweep or of a {agent} config{suggestion}")


def _check(settings: SweepSettings, dimensions: Mapping[str, Dimension], base: Mapping[str, Any]) -> None:
    if not dimensions:
        raise ConfigError(
            "a sweep needs a key with values to try; add e.g. learning_rate: {log_uniform: [1.0e-4, 1.0e-2]}"
        )
    if base.get("eval_episodes") == 0:
        raise ConfigError("eval_episodes=0 does not go with a sweep, which compares greedy returns; leave it out")
    if settings.objective != "final" and base.get("eval_every") is None:
        raise ConfigError(
            f"objective={settings.objective} needs evaluations along the runs; add e.g. eval_every: 10000"
        )
    if settings.sampler == "optuna" and settings.halving is not None:
        raise ConfigError("halving does not go with sampler=optuna, which scores every trial at its end; leave out one")
    for key in ("storage", "study"):
        if getattr(settings, key) is not None and settings.sampler != "optuna":
            raise ConfigError(f"{key}={show_value(getattr(settings, key))} needs sampler: optuna; leave out one")
    if settings.halving is not None and "total_steps" in dimensions:
        raise ConfigError(
            "total_steps cannot be swept with halving, which compares trials at equal steps; leave out one"
        )


def _refuse_without_effect(settings: SweepSettings, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key of a new sweep that changes nothing with its other keys."""
    needs = {
        "trials": (settings.sampler != "grid", "a sampler other than grid, which has as many trials as combinations"),
        "sampler_seed": (settings.sampler != "grid", "a sampler other than grid, which draws nothing"),
        "batch": (settings.sampler == "optuna", "sampler: optuna"),
        "rungs": (settings.halving is not None, "halving"),
    }
    for key, (has_effect, needed) in needs.items():
        if (value := getattr(settings, key)) != SweepSettings.model_fields[key].default and not has_effect:
            raise ConfigError(f"{key}={show_value(value)} needs {needed}; leave it out")
    for key in ("wandb", "tensorboard", "keep_best", "report"):  # of a base config they hold for best.yaml
        if values.get(key, default := Settings.model_fields[key].default) != default:
            raise ConfigError(
                f"{key}={show_value(values[key])} does not go with a sweep, whose trials do without; leave it out, and "
                "give it when best.yaml is trained"
            )

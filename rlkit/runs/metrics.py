"""Metric lines: a summary of the updates since the line before, one JSON object a line, with copies for other viewers.

A line holds `step` (environment steps of one seed), `seconds` (of training, compilation apart), `steps_per_second` (of
all seeds together since the line before; in the last line, since the run began or was resumed), `episodes`,
`return_mean`, `return_iqm`, `return_min`, `return_max` and `length_mean` over the episodes that finished since the line
before, then the agent's own metrics, averaged over the updates. Of several players, returns are of each, `episodes`
counts those of their worlds, and a team has `team_return_mean`, the mean of the sum of its returns. With environments
outside of JAX, `env_restarts` is the number of workers that were restarted since the line before. The numbers that
`on_chunk` of `runs.train` returns follow at the end. With several seeds all but the first three are lists with one
entry per seed. A number that is not finite, or that has no episode, is null.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from rlkit.names import shorten
from rlkit.runs import files, records, run_directory
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.records import Count, Number, Numbers
from rlkit.runs.versions import require
from rlkit.training.train import EPISODES, SUMMARIES
from rlkit.types import ConfigError, num_players

_COUNTS = ("env_restarts",)  # added up over the updates
_SUMMARIZED = {*EPISODES, *SUMMARIES} - {"reward_mean"}  # summarized over all updates of a line


def summarize(metrics: Mapping[str, np.ndarray], num_seeds: int, env: Any = None) -> dict[str, Any]:
    """Return the entries of a line from the metrics of its updates.

    Args:
      metrics: "returns", "lengths" and "successes", if there, [K, T, N], others [K]; with several seeds [K, S, ...].
      num_seeds: S.
      env: the environment; None for one of a single player.

    Returns:
      float by name, or a list of S where num_seeds > 1. Of several players, `return_mean` and its kin are of players,
      `episodes` counts those of worlds, and `team_return_mean` is there where they share their rewards.
    """
    if np.isnan(metrics.get("successes", np.nan)).all():  # an environment without them, or no episode ended
        metrics = {name: array for name, array in metrics.items() if name != "successes"}
    if num_seeds == 1:
        return _summary(metrics, env)
    seeds = [_summary({name: array[:, seed] for name, array in metrics.items()}, env) for seed in range(num_seeds)]
    return {name: [summary[name] for summary in seeds] for name in seeds[0]}


def additional(entries: Mapping[Any, Any], line: Mapping[str, Any], num_seeds: int) -> dict[str, Any]:
    """Return the numbers that a user's `on_chunk` adds to a line, in the form of its other entries.

    Args:
      entries: a number by name, or with several seeds a list or an array [num_seeds] too.
      line: the line without them.
      num_seeds: S.

    Raises:
      ConfigError: a name is not a text or is in the line already, or a value is not a number.
    """
    added = {}
    for name, value in entries.items():
        if not isinstance(name, str) or name in line:
            raise ConfigError(f"on_chunk returned the entry {name!r}, and needs a new name for it; try 'my_{name}'")
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or array.shape not in ((), (num_seeds,)[num_seeds == 1 :]):
            several = f", or {num_seeds} numbers, one a seed" if num_seeds > 1 else ""
            raise ConfigError(f"on_chunk returned {name}={shorten(repr(value))}, which must be a number{several}")
        added[name] = number(array) if array.ndim == 0 else [number(entry) for entry in array]
    return added


class Line(dict[str, Any]):
    """A metric line as `on_chunk` gets it: a number by name (None where there is none), the mean where there are seeds.

    Attributes:
      seeds: the same entries of each seed; of a single run, the line itself.
    """

    def __init__(self, line: Mapping[str, Any], num_seeds: int):
        by_seed = {name: value for name, value in line.items() if isinstance(value, list)}
        super().__init__({**line, **{name: mean(value) for name, value in by_seed.items()}})
        self.seeds = [{**line, **{name: value[i] for name, value in by_seed.items()}} for i in range(num_seeds)]


def team_return(env: Any, return_mean: float | None) -> dict[str, float | None]:
    """Return the mean over worlds of the sum of a team's returns, by name; nothing where players are no team.

    The episodes of a world end together, so that this is the number of players times their mean.
    """
    if not getattr(env, "shared_reward", False):
        return {}
    return {"team_return_mean": None if return_mean is None else number(return_mean * num_players(env))}


def _summary(metrics: Mapping[str, np.ndarray], env: Any) -> dict[str, Any]:
    """The entries of one seed."""
    finished = metrics["lengths"] > 0
    returns, lengths = metrics["returns"][finished].astype(np.float64), metrics["lengths"][finished]
    quarter = returns.size // 4

    def statistic(function: Callable, values: np.ndarray) -> float | None:
        return number(function(values)) if values.size else None

    line = {
        "episodes": int(returns.size) // num_players(env),
        "return_mean": statistic(np.mean, returns),
        "return_iqm": statistic(lambda x: np.mean(np.sort(x)[quarter : x.size - quarter]), returns),
        "return_min": statistic(np.min, returns),
        "return_max": statistic(np.max, returns),
        "length_mean": statistic(np.mean, lengths),
        **({"success_rate": mean(metrics["successes"])} if "successes" in metrics else {}),
    }
    line |= team_return(env, line["return_mean"])
    return line | {
        name: int(array.sum()) if name in _COUNTS else mean(array)
        for name, array in metrics.items()
        if name not in _SUMMARIZED
    }


def mean(values: Any) -> float | None:
    """Return the mean of the finite values, such as those of seeds; None where there is none."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    return number(finite.mean()) if finite.size else None


def number(value: Any) -> float | None:
    """Return a number with seven digits; None where it is not finite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


class MetricLines:
    """Writer of a run's metric lines: metrics.jsonl, and TensorBoard or Weights & Biases where the config has them on.

    Raises:
      ConfigError: a writer's package is not installed.
    """

    def __init__(self, run: Path, config: RunConfig, *, length: int = 0, step: int = 0):
        self.path = run / run_directory.METRICS
        writers = ((_tensorboard, config.run.tensorboard), (_wandb, config.run.wandb))
        self.writers = [make(run, config, step) for make, setting in writers if setting]
        files.cut(self.path, length)  # the lines after the checkpoint will be written again

    def add(self, line: Mapping[str, Any]) -> None:
        records.append(self.path, line)
        for write, _ in self.writers:
            write(_scalars(line), line["step"])

    def sync(self) -> int:
        """Flush the lines to the disk and return the file's length in bytes."""
        return files.append(self.path, b"", durable=True)

    def close(self) -> None:
        """Close the writers of other viewers."""
        for _, close in self.writers:
            close()


class NoLines(MetricLines):
    """The metric lines of a process that writes none, as another one does."""

    def __init__(self) -> None:
        self.writers = []

    def add(self, line: Mapping[str, Any]) -> None: ...

    def sync(self) -> int:
        return 0


_Writer = tuple[Callable[[dict[str, float], int], None], Callable[[], None]]


def require_writers(config: RunConfig) -> None:
    """Raise a ConfigError where the package of a metric writer, or that of a report, is not installed."""
    for key, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("report", "plotly")):
        if value := getattr(config.run, key):
            require(package, f"{key}={value!r}", key)


def _tensorboard(run: Path, config: RunConfig, step: int) -> _Writer:
    from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

    writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)  # of a resumed run

    def write(scalars: dict[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _wandb(run: Path, config: RunConfig, step: int) -> _Writer:
    import wandb  # pyright: ignore[reportMissingImports]

    identity = run / "wandb.id"  # with the same id a resumed run continues its curves
    if not identity.exists():
        files.replace(identity, secrets.token_hex(4).encode())
    session = wandb.init(
        project=config.run.wandb,
        id=files.read(identity, 64).decode(),
        resume="allow",
        name=run.name,
        dir=str(run),
        config=config.flat(),
    )
    return lambda scalars, step: session.log(scalars, step=step), session.finish


def _scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line, for viewers without lists: with several seeds their mean."""
    values = {name: mean(value) for name, value in line.items() if name != "step"}
    return {name: value for name, value in values.items() if value is not None}


class _Line(BaseModel, extra="allow"):
    __pydantic_extra__: dict[str, Number | Numbers | None]
    step: Count
    seconds: Number = 0.0


def read(run: Path) -> list[dict[str, Any]]:
    """Read the metric lines of a run; an unfinished last line is left out.

    Raises:
      ConfigError: there is no such file, or a line is not a metric line; the error names the line and the entry.
    """
    rule = "hold one JSON object with a step in each line"
    return records.read_lines(run / run_directory.METRICS, _Line, rule, "train the run anew")

"""Runs side by side: their state, scores and settings, read from their files alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.names import shorten
from rlkit.runs import metrics, records, run_directory, scores
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.load import read
from rlkit.types import ConfigError

_SAME = ("agent", "env", "total_steps")  # keys with columns of their own


class Overview(NamedTuple):
    """The files of a run in short."""

    path: Path
    config: dict[str, Any]
    versions: dict[str, Any]
    lines: list[dict[str, Any]]  # metric lines
    evaluation: dict[str, Any]  # of eval.json; empty where there is none of the step of the last metric line
    state: str  # "training", "finished", "stopped", "not started", or what is wrong with its files

    @property
    def line(self) -> dict[str, Any]:
        """The last metric line; empty before the first."""
        return self.lines[-1] if self.lines else {}

    @property
    def step(self) -> int:
        """Environment steps of the last metric line."""
        return self.line.get("step", 0)

    @property
    def score(self) -> tuple[float | None, str]:
        """The mean return, and of which episodes it is: greedy ones at the end, or those of training."""
        if self.evaluation.get("mean") is not None:
            return self.evaluation["mean"], "greedy"
        values, kind = self._returns_of_last_line
        return (float(np.mean(values)), kind) if values else (None, "")

    @property
    def returns(self) -> tuple[list[float], str]:
        """The mean return of each seed that has one, and of which episodes: greedy ones at the end, or training."""
        values = [mean for mean in self.evaluation.get("mean_of_seed") or [] if mean is not None]
        return (values, "greedy") if values else self._returns_of_last_line

    @property
    def episode_returns(self) -> list[float]:
        """The returns of single greedy episodes at the end of a run of one seed; none of several seeds."""
        returns = self.evaluation.get("returns")
        if not isinstance(returns, list) or len(returns) != 1:
            return []
        return [x for x in returns[0] if x is not None]

    @property
    def _returns_of_last_line(self) -> tuple[list[float], str]:
        for name, kind in (("eval_return_mean", "greedy"), ("return_mean", "training")):
            values = [value for value in np.atleast_1d(np.asarray(self.line.get(name), object)) if value is not None]
            if values:
                return values, kind
        return [], ""


def read_run(path: Path) -> Overview:
    """Read a run directory. A damaged file is named in `state`, and its content counts as missing.

    Raises:
      ConfigError: it is no run directory.
    """
    run = run_directory.existing(path)
    problems: list[str] = []

    def content(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments) if (run / name).exists() else {}
        except ConfigError as error:
            problems.append(str(error))
            return {}

    config = content(run_directory.CONFIG, read, run / run_directory.CONFIG)
    of_versions = run / run_directory.VERSIONS, dict[str, Any], "hold a JSON object", "train the run anew"
    versions = content(run_directory.VERSIONS, records.read, *of_versions)
    evaluation = content(run_directory.EVALUATION, scores.read, run)
    lines = content(run_directory.METRICS, metrics.read, run) or []
    line = lines[-1] if lines else {}
    if evaluation.get("step") != line.get("step", 0):  # of a run that was resumed since
        evaluation = {}
    if problems:
        state = f"damaged: {problems[0]}"
    elif run_directory.is_locked(run):
        state = "training"
    elif not line:
        state = "not started"
    else:
        total = config.get("total_steps", 0)
        state = "finished" if isinstance(total, int | float) and line["step"] >= total else "stopped"
    return Overview(path, config, versions, lines, evaluation, state)


def find(folder: Path) -> list[Overview]:
    """Return the runs in a folder and in its folders, by path. Raises ConfigError where there is none."""
    if not folder.is_dir():
        raise ConfigError(f"folder={str(folder)!r} must be a directory, and there is none; `rlkit train` makes runs")
    paths = {config.parent for depth in ("*", "*/*") for config in folder.glob(f"{depth}/{run_directory.CONFIG}")}
    runs = [read_run(path) for path in sorted(paths) if (path / run_directory.CHECKPOINTS).is_dir()]
    if not runs:
        raise ConfigError(f"folder={str(folder)!r} must hold runs, and there is none; `rlkit train` makes one")
    return runs


def differences(mappings: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the keys whose values differ among mappings, each with its values as text; a missing one is "-"."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    rows = {str(key): [show_value(m[key]) if key in m else "-" for m in mappings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def table(runs: Sequence[Overview]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table of runs.

    Settings that differ among runs of the same agent and environment are in the last column.
    """
    groups: dict[tuple[Any, ...], list[Overview]] = {}
    for run in runs:
        groups.setdefault(tuple(str(run.config.get(key)) for key in _SAME[:2]), []).append(run)
    settings: dict[Path, str] = {}
    for group in groups.values():
        changed = differences([run.config for run in group])
        for index, run in enumerate(group):
            own = (f"{key}={values[index]}" for key, values in changed.items() if key not in _SAME)
            settings[run.path] = ", ".join(own)
    header = ["run", "agent", "environment", "state", "steps", "return", "of", "minutes", "differs in"]
    return header, [_row(run, settings[run.path]) for run in runs]


def _row(run: Overview, settings: str) -> list[str]:
    mean, kind = run.score
    total = run.config.get("total_steps")
    steps = f"{run.step:,} of {total:,.0f}" if isinstance(total, int | float) else f"{run.step:,}"
    return [
        str(run.path),
        shorten(ascii(run.config.get("agent", ""))[1:-1]),
        shorten(ascii(run.config.get("env", ""))[1:-1]),
        run.state,
        steps,
        "" if mean is None else f"{mean:.4g}",
        kind,
        f"{run.line.get('seconds', 0.0) / 60:.1f}",
        settings,
    ]


def comparison(runs: Sequence[Overview]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table with a column for each run: scores, then configs and versions.

    Of configs and versions only what differs is shown.
    """
    rows = [["state", *(run.state for run in runs)], ["steps", *(f"{run.step:,}" for run in runs)]]
    rows.append(["return, greedy mean", *(_number(run.evaluation.get("mean")) for run in runs)])
    rows.append(["IQM [interval]", *(_interval(run.evaluation) for run in runs)])
    rows.append(["episodes, seeds", *(_counts(run.evaluation) for run in runs)])
    rows.append(["return, last line", *(_number(run.line.get("return_mean")) for run in runs)])
    rows.append(["steps per second", *(_number(run.line.get("steps_per_second")) for run in runs)])
    rows.append(["minutes", *(f"{run.line.get('seconds', 0.0) / 60:.1f}" for run in runs)])
    rows += [[f"config: {key}", *values] for key, values in differences([run.config for run in runs]).items()]
    rows += [[f"version: {key}", *values] for key, values in differences([run.versions for run in runs]).items()]
    return ["", *(str(run.path) for run in runs)], rows


def _interval(evaluation: dict[str, Any]) -> str:
    """The interquartile mean of an evaluation and its interval as text, a range where that is over few values."""
    ends, over, means = (evaluation.get(key) for key in ("interval", "interval_over", "mean_of_seed"))
    if evaluation.get("iqm") is None or not isinstance(ends, list):
        return "-"
    known = [mean for mean in means if mean is not None] if isinstance(means, list) else []
    count = evaluation.get("episodes", 0) if over == "episodes" else len(known)
    return f"{_number(evaluation['iqm'])} [{', '.join(map(_number, ends))}], {scores.interval_name(count)} over {over}"


def _counts(evaluation: dict[str, Any]) -> str:
    seeds = evaluation.get("seeds")
    return f"{evaluation.get('episodes')}, {len(seeds)}" if isinstance(seeds, list) else "-"


def _number(value: Any) -> str:
    """A number with four digits; of several seeds their mean; "-" for none."""
    values = [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, int | float)]
    if not values:
        return "-"
    mean = float(np.mean(values))
    return f"{mean:,.0f}" if abs(mean) >= 10_000 else f"{mean:.4g}"

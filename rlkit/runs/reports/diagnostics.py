"""The numbers of metric lines beside returns, in groups: one small figure for each."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.runs.pictures.curves import time_unit
from rlkit.runs.reports.figures import Figure, horizontal, line, text
from rlkit.runs.reports.reading import Run
from rlkit.runs.reports.statistics import bins, json_numbers

_POINTS = 150  # of a line; a longer one is drawn by means over neighboring metric lines
_NO_METRIC = ("step", "seconds", "return_mean", "eval_return_mean")  # axes, and the learning curves
_GROUPS = (
    ("Episodes", r"episodes|return_.*|length_.*|reward_.*"),
    ("Evaluations", r"eval_.*"),
    ("Losses", r"(.*_)?loss(_.*)?"),
    ("Policy", r".*(entropy|kl|clip_fraction|temperature|log_std|action).*"),
    ("Values", r"q|q_.*|.*(value|explained_variance|advantage|target|priority|td_).*"),
    ("Gradients", r".*(grad|norm|learning_rate).*"),
    ("Speed and workers", r"steps_per_second|env_restarts|.*_idle|.*seconds.*"),
    ("Further numbers", r".*"),
)
_UNITS = {
    "steps_per_second": "environment steps per second",
    "episodes": "episodes per metric line",
    "eval_episodes": "episodes",
    "length_mean": "steps per episode",
    "return_min": "return",
    "return_max": "return",
    "return_iqm": "return",
    "reward_mean": "reward per step",
    "env_restarts": "workers restarted",
    "envs_idle": "share of time",
    "learner_idle": "share of time",
    "explained_variance": "share, 1 is perfect",
    "clip_fraction": "share of samples",
    "approx_kl": "nats",
    "update_kl": "nats",
    "entropy": "nats",
}


def groups(runs: Sequence[Run]) -> dict[str, list[Figure]]:
    """Return the figures of each group that has one, by its heading."""
    names = dict.fromkeys(name for run in runs for entries in run.lines for name in entries if isinstance(name, str))
    found: dict[str, list[Figure]] = {}
    for group, pattern in _GROUPS:
        for name in [name for name in names if name not in _NO_METRIC and re.fullmatch(pattern, name)]:
            del names[name]
            figure = _figure(runs, name)
            if figure is not None:
                found.setdefault(group, []).append(figure)
    return found


def _figure(runs: Sequence[Run], name: str) -> Figure | None:
    """The lines of one number; None where no run has a finite one."""
    curves = {str(index): c for index, run in enumerate(runs) if (c := run.training or run.greedy) is not None}
    unit, divisor = time_unit(curves)
    traces = [trace for index, run in enumerate(runs) if (trace := _trace(run, index, name, divisor)) is not None]
    if not traces:
        return None
    layout = {"xaxis": horizontal(unit), "yaxis": {"title": {"text": _UNITS.get(name, text(name))}}}
    return Figure(name, "", {"data": traces, "layout": layout | {"showlegend": False}}, 260)


def _trace(run: Run, index: int, name: str, divisor: float) -> dict[str, Any] | None:
    """The line of one run: means over seeds, with the range over seeds and over the metric lines of a point."""
    rows = [(row["step"], row.get("seconds"), _numbers(row[name])) for row in run.lines if name in row]
    rows = [row for row in rows if row[2].size]
    if not any(np.isfinite(values).any() for _, _, values in rows):
        return None
    parts = [rows[part] for part in bins(len(rows), _POINTS)]
    known = [np.concatenate([values[np.isfinite(values)] for *_, values in part]) for part in parts]
    mean, *ends = (
        np.array([statistic(values) if values.size else np.nan for values in known])
        for statistic in (np.mean, np.min, np.max)
    )
    times = [[seconds for _, seconds, _ in part if isinstance(seconds, int | float)] for part in parts]
    x = {
        "steps": [round(float(np.mean([step for step, _, _ in part]))) for part in parts],
        "time": json_numbers([np.mean(values) / divisor if values else np.nan for values in times]),
    }
    is_range = sum(values.size for _, _, values in rows) > len(parts)
    return line(index, run.name, x, mean, ends if is_range else None, width=1.5)


def _numbers(value: Any) -> np.ndarray:
    """The numbers of an entry [S] float, NaN for what is none."""
    values = value if isinstance(value, list) else [value]
    return np.array([x if isinstance(x, int | float) and abs(x) < 1e300 else np.nan for x in values], np.float64)

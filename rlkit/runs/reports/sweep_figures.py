"""The figures of a sweep: the effect of each key on the score, and parallel coordinates of all trials."""

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs import files, run_directory
from rlkit.runs.config.load import read
from rlkit.runs.reports.figures import LOG_AXIS, Figure, error_bars, scale, text
from rlkit.runs.sweeps.config import parse_dimensions
from rlkit.runs.sweeps.results import TABLE
from rlkit.runs.sweeps.space import Dimension
from rlkit.types import ConfigError

CONFIG = run_directory.SWEEP
_MAX_BYTES = 1 << 28


class Trials(NamedTuple):
    """The table of a sweep's trials."""

    name: str
    header: list[str]
    rows: list[dict[str, str]]
    dimensions: dict[str, Dimension]  # the keys that were tried
    objective: str  # of the score: "final", "best" or "area"


def read_trials(folder: Path) -> Trials:
    """Read the table of a sweep's folder.

    Raises:
      ConfigError: there is no such table, or it is damaged.
    """
    path = folder / TABLE
    stored = read(folder / CONFIG)
    dimensions = parse_dimensions(stored)
    try:
        header, *lines = csv.reader(io.StringIO(files.read(path, _MAX_BYTES).decode()))
        rows = [dict(zip(header, line, strict=True)) for line in lines]
    except OSError as error:
        raise ConfigError(f"{path} must be the table of a sweep: {error.strerror}; go on with the sweep") from None
    except ValueError:
        rows, header = [], []
    columns = {"trial", "status", "step", "score", "low", "high", *dimensions}
    if not columns <= set(header) or not all(re.fullmatch("[0-9]{1,9}", row["trial"]) for row in rows):
        raise ConfigError(f"{path} must be the table of a sweep, and it is not; go on with the sweep")
    return Trials(folder.resolve().name, header, rows, dimensions, str(stored.get("objective", "final")))


def ranked(trials: Trials) -> list[list[str]]:
    """Return the rows of the table, the best first: those that went furthest, then by score, and mean over seeds."""

    def order(row: dict[str, str]) -> tuple[float, ...]:
        score = number(row["score"])
        of_seed = [number(row[name]) for name in trials.header if name[:5] in ("seed_", "seed+")]
        if score is None:
            return (1, 0, 0, 0, int(row["trial"]))
        steps = math.inf if row["status"] == "done" else number(row["step"]) or 0
        mean = float(np.mean([value for value in of_seed if value is not None] or [score]))
        return (0, -steps, -score, -mean, int(row["trial"]))

    return [[row[name] for name in trials.header] for row in sorted(trials.rows, key=order)]


def number(cell: str) -> float | None:
    """Return the finite number in a cell; None for any other."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def effects(trials: Trials) -> list[Figure]:
    """Return a figure of the score over the values of each key."""
    return [_effect(trials, key) for key in trials.dimensions]


def _effect(trials: Trials, key: str) -> Figure:
    words = _is_words(trials, key)
    bottom = min((score for row in trials.rows if (score := number(row["score"])) is not None), default=0.0)
    gray = ("@soft", "circle")
    kinds = (("done", "@0", "circle"), ("stopped", *gray), ("unfinished", *gray), ("diverged", "@3", "x"))
    traces = []
    for status, color, symbol in kinds:
        rows = [row for row in trials.rows if row["status"] == status]
        scores = [number(row["score"]) if status != "diverged" else bottom for row in rows]
        if not rows:
            continue
        ends = [(number(row["low"]), number(row["high"])) for row in rows]
        lengths = [
            (None, None) if score is None or low is None or high is None else (high - score, score - low)
            for score, (low, high) in zip(scores, ends, strict=True)
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": status,
                "x": [text(row[key]) if words else number(row[key]) for row in rows],
                "y": scores,
                "marker": {"color": color, "symbol": symbol, "size": 7, "opacity": 0.85},
                "error_y": error_bars(*zip(*lengths, strict=True), color=color, thickness=0.7, width=0),
                "text": [f"trial {row['trial']}, {status}" for row in rows],
                "hovertemplate": "%{text}<br>%{y:.4g} at %{x}<extra></extra>",
            }
        )
    axis: dict[str, Any] = {"title": {"text": text(key)}}
    if words:
        axis |= {"type": "category"}
    elif trials.dimensions[key].kind == "log_uniform":
        axis |= LOG_AXIS
    layout = {
        "xaxis": axis,
        "yaxis": {"title": {"text": _score_name(trials)}},
        "showlegend": len(traces) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
    }
    return Figure(key, "", {"data": traces, "layout": layout}, 300)


def _score_name(trials: Trials) -> str:
    """The name of the scores: of the end of runs, unless some are of trials that went less far."""
    all_done = all(row["status"] == "done" for row in trials.rows if number(row["score"]) is not None)
    return f"{text(trials.objective)} greedy return" if all_done else "greedy return at the last step"


def _is_words(trials: Trials, key: str) -> bool:
    """True where some value of a key is no number."""
    return any(number(row[key]) is None for row in trials.rows)


def parallel_coordinates(trials: Trials) -> Figure | None:
    """Return parallel coordinates of the trials with a score; None for fewer than two."""
    rows = [row for row in trials.rows if number(row["score"]) is not None]
    if len(rows) < 2:
        return None
    scores = [score for row in rows if (score := number(row["score"])) is not None]
    axes = [_coordinate(trials, key, rows) for key in trials.dimensions]
    axes.append({"label": "score", "values": scores})
    line = {"color": scores, **scale(min(scores), max(scores), _score_name(trials))}
    trace = {"type": "parcoords", "dimensions": axes, "line": line}
    caption = (
        "A line is a trial, colored by its score. Dragging along an axis selects values, and a click on the axis "
        "selects all again; axes can be moved by their names."
    )
    layout = {"margin": {"l": 70, "r": 40, "t": 50, "b": 24}}
    return Figure("Parallel coordinates", caption, {"data": [trace], "layout": layout}, 420)


def _coordinate(trials: Trials, key: str, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    """An axis of parallel coordinates: words in their order, and logarithms where the key is drawn on a log scale."""
    if _is_words(trials, key):
        words = list(dict.fromkeys(row[key] for row in rows))
        ticks = {"tickvals": list(range(len(words))), "ticktext": [text(word) for word in words]}
        return {"label": text(key), "values": [words.index(row[key]) for row in rows], **ticks}
    values = [value for row in rows if (value := number(row[key])) is not None]
    if trials.dimensions[key].kind != "log_uniform" or min(values) <= 0:
        return {"label": text(key), "values": values}
    logs = [math.log10(value) for value in values]
    low, high = min(logs), max(logs)
    places = [low + (high - low) * share / 4 for share in range(5)]
    ticks = {"tickvals": places, "ticktext": [f"{10**place:.2g}" for place in places]}
    return {"label": text(key), "values": logs, **ticks}

"""The figures of a population: who copied whom, and the hyper-parameters, colored by the scores of their time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlkit.runs.pictures.lineage import ancestors, interval_scores, is_logarithmic
from rlkit.runs.population import record
from rlkit.runs.reports.figures import LOG_AXIS, Figure, scale, text
from rlkit.runs.reports.reading import Run
from rlkit.runs.reports.statistics import json_number

_SHADES = 24  # steps of the colors of the scale that lines have


def lineage(run: Run) -> list[Figure]:
    """Return the lineage of a run's population and the values of each key that evolves; none of another run.

    Raises:
      ConfigError: the record of the population is damaged.
    """
    if run.unit != "members" or not (run.overview.path / record.FILE).exists():
        return []
    path, end = run.overview.path, run.overview.step
    evolutions = [evolution for evolution in record.read(path) if evolution["step"] <= end]
    if not evolutions or not run.lines:
        return []
    scores = record.latest_scores(path, end)
    colored = interval_scores(evolutions, scores)  # [E, P]
    steps = [*(evolution["step"] for evolution in evolutions), end]
    best = int(np.nanargmax(scores)) if np.isfinite(scores).any() else None
    rows = np.tile(np.arange(colored.shape[1], dtype=np.float64), (len(evolutions), 1))
    caption = "A line is a member; a color is its score at that time; a dotted line is a copy of parameters."
    if best is not None:
        caption += f" The broad band is the ancestry of the best member, {best}."
    height = 160 + 22 * min(colored.shape[1], 40)
    figures = [_figure(f"Lineage of {run.name}", caption, rows, evolutions, steps, colored, best, "member", height)]
    for name, values in record.hyper(evolutions).items():
        figures.append(_figure(name, "", values, evolutions, steps, colored, best, text(name), 360))
    return figures


def _figure(
    title: str,
    caption: str,
    values: np.ndarray,
    evolutions: Sequence[dict[str, Any]],
    steps: Sequence[int],
    colored: np.ndarray,
    best: int | None,
    axis: str,
    height: int,
) -> Figure:
    """Draw a value [E, P] of each member in each interval between evolutions."""
    known = colored[np.isfinite(colored)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    traces = []
    if best is not None:
        path = ancestors(evolutions, best)
        schedule = [json_number(values[index, member]) for index, member in enumerate(path)]
        traces.append(_lines([*steps], [*schedule, schedule[-1]], {"color": "@line", "width": 9, "shape": "hv"}))
    jumps_x, jumps_y = [], []
    for index, evolution in enumerate(evolutions[1:], start=1):
        for member, parent in enumerate(evolution["parents"]):
            if parent != member:
                origin = values[index - 1, parent] if axis != "member" else parent
                jumps_x += [steps[index], steps[index], None]
                jumps_y += [json_number(origin), json_number(values[index, member]), None]
    traces.append(_lines(jumps_x, jumps_y, {"color": "@soft", "width": 1, "dash": "dot"}))
    segments: dict[str, tuple[list[Any], list[Any], list[Any]]] = {}
    for index, member in np.ndindex(colored.shape):
        score = float(colored[index, member])
        color = "@soft"  # without a score
        if np.isfinite(score):
            share = (score - low) / (high - low) if high > low else 0.5
            color = f"@s{round(share * _SHADES) / _SHADES:.4g}"
        xs, ys, texts = segments.setdefault(color, ([], [], []))
        value = json_number(float(values[index, member]))
        xs += [steps[index], steps[index + 1], None]
        ys += [value, value, None]
        texts += [f"member {member}, score {score:.4g}"] * 2 + [""]
    for color, (xs, ys, texts) in sorted(segments.items()):
        hover = {"hovertemplate": "%{text}<br>%{y:.4g} at %{x}<extra></extra>", "text": texts, "hoverinfo": "text"}
        traces.append(_lines(xs, ys, {"color": color, "width": 3}) | hover)
    bar = scale(low, high, "score of the member at that time")
    traces.append({"type": "scatter", "mode": "markers", "x": [None], "y": [None], "marker": bar, "hoverinfo": "skip"})
    layout = {
        "xaxis": {"title": {"text": "environment steps"}},
        "yaxis": {
            "title": {"text": axis},
            **(LOG_AXIS if axis != "member" and is_logarithmic(values) else {}),
        },
        "showlegend": False,
    }
    return Figure(title, caption, {"data": traces, "layout": layout}, height)


def _lines(x: list[Any], y: list[Any], line: dict[str, Any]) -> dict[str, Any]:
    """A trace of lines; None ends one."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}

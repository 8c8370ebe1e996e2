"""The figures of a report as Plotly's JSON, with three additions that page.js resolves.

A text "@3" is the color of the run with index 3, "@s0.5" the middle of a scale, and "@ink" a color of the theme. A
mapping {"steps": ..., "time": ...} is a choice of the horizontal axis. A trace's `band`, [low, high], is the interval
around its line.
"""

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs.pictures.curves import Curve, time_unit
from rlkit.runs.reports.reading import Run
from rlkit.runs.reports.statistics import bins, json_numbers, performance_profile, probability_of_improvement
from rlkit.runs.scores import interval_name

_POINTS = 400  # of a curve; a longer one is drawn by means over neighboring metric lines
_DASHES = ("solid", "dash", "dot")  # one after another for each round of the eight colors
_NUM_COLORS = 8
LOG_AXIS = {"type": "log", "exponentformat": "power"}


class Figure(NamedTuple):
    """A figure of the page."""

    title: str
    caption: str  # what is drawn, in one or two sentences; "" for none
    spec: dict[str, Any]  # "data" and "layout"
    height: int = 420  # pixels


def text(value: Any) -> str:
    """Return text for Plotly, which reads some HTML in names and titles."""
    return html.escape(str(value), quote=False)


def style(index: int) -> dict[str, Any]:
    """Return the line of the run with this index."""
    return {"color": f"@{index}", "width": 2, "dash": _DASHES[index // _NUM_COLORS % len(_DASHES)]}


def line(
    index: int, name: str, x: Any, y: np.ndarray, ends: Sequence[np.ndarray] | None, **changes: Any
) -> dict[str, Any]:
    """Return the line of the run with this index through points, which is a marker where there is one point.

    Args:
      index, name: of the run.
      x: numbers, or a choice of them.
      y: [K] float.
      ends: the lower and the upper end of the interval around the line, [K] float each; None for no interval.
      changes: attributes of the line.
    """
    return {
        "type": "scatter",
        "mode": "lines" if y.size > 1 else "markers",
        "name": text(name),
        "meta": {"run": index},
        "line": style(index) | changes,
        "marker": {"color": f"@{index}"},
        "x": x,
        "y": json_numbers(y),
        **({"band": [json_numbers(end) for end in ends]} if ends is not None else {}),
    }


def horizontal(unit: str) -> dict[str, Any]:
    """Return the horizontal axis of curves, by environment steps or time in `unit`."""
    return {"title": {"text": {"steps": "environment steps", "time": f"{unit} of training"}}}


def scale(low: float, high: float, title: str) -> dict[str, Any]:
    """Return the attributes of colors for numbers from `low` to `high`, with a bar beside the figure."""
    return {
        "cmin": low,
        "cmax": high if high > low else low + 1.0,
        "colorscale": [[share, f"@s{share}"] for share in (0.0, 0.25, 0.5, 0.75, 1.0)],
        "showscale": True,
        "colorbar": {"title": {"text": title, "side": "right"}, "thickness": 12},
    }


def error_bars(above: Sequence[Any], below: Sequence[Any], **style: Any) -> dict[str, Any]:
    """Return bars of these lengths around points, [K] float each or None."""
    lengths = {"array": json_numbers(above), "arrayminus": json_numbers(below)}
    return {"type": "data", "symmetric": False, **lengths, **style}


def learning_curves(runs: Sequence[Run]) -> list[Figure]:
    """Return the learning curves: a figure for each environment and kind of returns."""
    figures = []
    for env in dict.fromkeys(run.env for run in runs):
        for kind in ("training", "greedy"):
            curves = {i: c for i, run in enumerate(runs) if run.env == env and (c := getattr(run, kind)) is not None}
            if curves:
                figures.append(_learning_curves(runs, env, kind, curves))
    return figures


def _learning_curves(runs: Sequence[Run], env: str, kind: str, curves: dict[int, Curve]) -> Figure:
    unit, divisor = time_unit({str(index): curve for index, curve in curves.items()})
    traces, captions, left_out = [], [], []
    for index, curve in curves.items():
        several = f" ({curve.seeds} seeds)" if curve.seeds > 1 else ""
        traces.append(_trace(curve, divisor, runs[index].name + several, index))
        if curve.missing:
            left_out.append(f"{runs[index].name}: {curve.missing} of {curve.missing + curve.step.size}")
    counts = sorted({curve.seeds for curve in curves.values()})
    episodes = "greedy episodes of an evaluation" if kind == "greedy" else "episodes that ended since the line before"
    if counts[-1] > 1:
        names = " or ".join(dict.fromkeys(interval_name(count) for count in counts if count > 1))
        captions.append(f"Interquartile mean over seeds of the mean return of {episodes}; shaded: {names}.")
    else:
        captions.append(f"Mean return of {episodes}.")
    if any(curve.step.size > _POINTS for curve in curves.values()):
        captions.append(f"A curve of more than {_POINTS} metric lines is drawn by means over neighboring lines.")
    if left_out:
        captions.append(f"Metric lines without an episode of every seed are left out ({', '.join(left_out)}).")
    layout = {
        "xaxis": horizontal(unit),
        "yaxis": {"title": {"text": "greedy return" if kind == "greedy" else "return of training episodes"}},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
    }
    title = f"{'Greedy return' if kind == 'greedy' else 'Return'} on {env}"
    height = 440 + 20 * (len(curves) // 4)
    return Figure(title, " ".join(captions), {"data": traces, "layout": layout}, height)


def _trace(curve: Curve, divisor: float, name: str, index: int) -> dict[str, Any]:
    seconds = np.full(curve.step.size, np.nan) if curve.seconds is None else curve.seconds
    parts = bins(curve.step.size, _POINTS)
    center, low, high, place, time = (
        np.array([np.mean(values[part], dtype=np.float64) for part in parts])
        for values in (curve.center, curve.low, curve.high, curve.step, seconds / divisor)
    )
    x = {"steps": [round(x) for x in place.tolist()], "time": json_numbers(time)}
    return line(index, name, x, center, (low, high) if curve.seeds > 1 else None)


def final_returns(runs: Sequence[Run]) -> list[Figure]:
    """Return a figure for each environment: final returns of each seed, or of the episodes of an only seed."""
    figures = []
    for env in dict.fromkeys(run.env for run in runs):
        chosen = [(index, run) for index, run in enumerate(runs) if run.env == env and run.returns.size]
        if chosen:
            figures.append(_final_returns(env, chosen))
    return figures


def _final_returns(env: str, chosen: Sequence[tuple[int, Run]]) -> Figure:
    traces, intervals = [], set()
    kinds = {run.kind for _, run in chosen}
    for index, run in reversed(chosen):  # the first one on top
        label = text(run.name if len(kinds) == 1 else f"{run.name} ({run.kind})")
        points = run.episodes if run.episodes.size else run.returns
        traces.append(
            {
                "type": "box",
                "orientation": "h",
                "name": label,
                "meta": {"run": index},
                "x": json_numbers(points),
                "y": [label] * points.size,
                "boxpoints": "all",
                "jitter": 0.5,
                "pointpos": 0,
                "fillcolor": "rgba(0,0,0,0)",
                "line": {"color": f"@{index}", "width": 1},
                "marker": {"color": f"@{index}", "size": 5, "opacity": 0.6},
                "hoverinfo": "x",
            }
        )
        if (count := run.returns.size) > 1:
            center, low, high = run.interval
            intervals.add(interval_name(count))
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "meta": {"run": index},
                    "x": json_numbers([center]),
                    "y": [label],
                    "marker": {"symbol": "diamond", "size": 11, "color": f"@{index}", "line": {"color": "@paper"}},
                    "error_x": error_bars([high - center], [center - low], color=f"@{index}", thickness=3),
                    "hovertemplate": f"IQM {center:.4g} [{low:.4g}, {high:.4g}] over {count}<extra>{label}</extra>",
                }
            )
    kind = " or ".join(sorted(kinds))
    caption = f"A point is the mean {kind} return of a seed at the end; boxes are quartiles."
    if any(run.episodes.size for _, run in chosen):
        caption += " Of a run of one seed, a point is the return of one greedy episode."
    if intervals:
        caption += f" The diamond is the interquartile mean, its line the {' or '.join(sorted(intervals))}."
    layout = {
        "xaxis": {"title": {"text": f"final {kind} return"}},
        "yaxis": {"automargin": True, "type": "category"},
        "showlegend": False,
    }
    return Figure(f"Final returns on {env}", caption, {"data": traces, "layout": layout}, 130 + 46 * len(chosen))


def comparisons(runs: Sequence[Run]) -> list[Figure]:
    """Return performance profiles and probabilities of improvement, for runs of equal tasks with several seeds."""
    figures = []
    groups: dict[tuple[str, str], list[int]] = {}
    for index, run in enumerate(runs):
        if run.returns.size > 1:
            groups.setdefault((run.env, run.kind), []).append(index)
    for (env, kind), chosen in groups.items():
        if len(chosen) > 1:
            figures.append(_profile(runs, env, kind, chosen))
            figures.append(_improvement(runs, env, kind, chosen))
    return figures


def _profile(runs: Sequence[Run], env: str, kind: str, chosen: Sequence[int]) -> Figure:
    every = np.concatenate([runs[index].returns for index in chosen])
    margin = 0.02 * (np.ptp(every) or 1.0)
    thresholds = np.array([every.min() - margin, *np.unique(every), every.max() + margin])  # where profiles change
    traces = []
    for index in chosen:
        returns = runs[index].returns
        share, *ends = performance_profile(returns, thresholds)
        name, x = f"{runs[index].name} ({returns.size} seeds)", json_numbers(thresholds)
        traces.append(line(index, name, x, share, ends if returns.size > 3 else None, shape="hv"))
    layout = {
        "xaxis": {"title": {"text": f"final {kind} return, τ"}},
        "yaxis": {"title": {"text": "share of seeds above τ"}, "range": [-0.03, 1.03]},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
    }
    caption = (
        "The share of seeds that end above each return: higher is better (performance profile, Agarwal et al. 2021). "
        "Shaded, where there are more than three seeds: pointwise 95% bootstrap interval."
    )
    return Figure(f"Performance profile on {env}", caption, {"data": traces, "layout": layout}, 400)


def _improvement(runs: Sequence[Run], env: str, kind: str, chosen: Sequence[int]) -> Figure:
    names = [text(runs[index].name) for index in chosen]
    returns = [runs[index].returns for index in chosen]
    pairs = [[None if x is y else probability_of_improvement(x, y) for y in returns] for x in returns]
    values = [[round(pair[0], 4) if pair else None for pair in row] for row in pairs]
    labels = [["{:.2f}<br>[{:.2f}, {:.2f}]".format(*pair) if pair else "" for pair in row] for row in pairs]
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": values,
        "text": labels,
        "texttemplate": "%{text}" if len(chosen) <= 8 else "",
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "@low"], [0.5, "@middle"], [1, "@high"]],
        "colorbar": {"title": {"text": "P(row > column)", "side": "right"}, "thickness": 12},
        "hovertemplate": "%{y} over %{x}: %{text}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    axis = {"type": "category", "automargin": True, "showgrid": False}
    layout = {
        "xaxis": {"title": {"text": "column"}, **axis},
        "yaxis": {"title": {"text": "row"}, **axis, "autorange": "reversed"},
        "showlegend": False,
    }
    caption = (
        f"The probability that a seed of the row ends with a greater {kind} return than a seed of the column, equal "
        "ones counted as one half, with its 95% bootstrap interval (Agarwal et al. 2021)."
    )
    height = 210 + 64 * min(len(chosen), 8) + 24 * max(len(chosen) - 8, 0)
    return Figure(f"Probability of improvement on {env}", caption, {"data": [trace], "layout": layout}, height)

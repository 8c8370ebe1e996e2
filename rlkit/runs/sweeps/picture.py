"""One page of plots of a sweep: the effect of each key, the best trials, and their learning curves."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.runs.pictures.curves import plain, save
from rlkit.runs.scores import interval_name
from rlkit.runs.sweeps.blocks import curve
from rlkit.runs.sweeps.config import Sweep
from rlkit.runs.sweeps.results import Result

PICTURE = "sweep.png"
_BEST = 8  # trials whose intervals and curves are drawn
_BLUE, _GRAY = "#3465a4", "#b0b0b0"


def draw(folder: Path, results: Sequence[Result], sweep: Sweep) -> None:
    """Write sweep.png, unless no trial has a score."""
    scored = sorted((result for result in results if result.score is not None), key=lambda result: result.order)
    if scored:
        save(figure(scored, [result for result in results if result.status == "diverged"], sweep), folder / PICTURE)


def figure(scored: Sequence[Result], diverged: Sequence[Result], sweep: Sweep) -> Any:
    """Return a matplotlib Figure.

    Args:
      scored: trials with a score, the best first.
      diverged: trials without one, which are drawn at the bottom.
      sweep: with the keys.
    """
    from matplotlib.figure import Figure

    keys = list(sweep.dimensions)
    columns = min(max(len(keys), 2), 4)
    rows = math.ceil(len(keys) / columns)
    drawing = Figure(figsize=(3.4 * columns, 2.7 * rows + 3.6), dpi=130, layout="constrained")
    upper, lower = np.asarray(drawing.subfigures(2, 1, height_ratios=[2.7 * rows, 3.6])).tolist()
    objective = f"{sweep.settings.objective} greedy return"
    any_stopped = len({result.rung for result in scored}) > 1
    for key, axes in zip(keys, np.atleast_1d(upper.subplots(rows, columns, sharey=True)).flat, strict=False):
        _effect(axes, key, scored, diverged, sweep)
    for axes in list(upper.axes)[len(keys) :]:
        axes.set_visible(False)
    for row in range(rows):
        upper.axes[row * columns].set_ylabel("greedy return" if any_stopped else objective)
    if any_stopped:
        handles, labels = upper.axes[0].get_legend_handles_labels()
        upper.legend(handles, labels, loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    left, right = lower.subplots(1, 2)
    _best(left, scored[:_BEST])
    _curves(right, scored[:_BEST])
    drawing.suptitle(f"{sweep.name}: {len(scored) + len(diverged)} trials, {sweep.base.get('env', '')}", fontsize=11)
    return drawing


def _effect(axes: Any, key: str, scored: Sequence[Result], diverged: Sequence[Result], sweep: Sweep) -> None:
    """Draw the score over a key: trials of the last rung in blue; in gray those that were stopped, with their steps."""
    from matplotlib.ticker import LogFormatterSciNotation

    dimension = sweep.dimensions[key]
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in dimension.values]
    words = dimension.kind == "values" and not all(numbers)
    names = [str(value) for value in dimension.values] if words else []

    def place(result: Result) -> float:
        value = result.trial.values[key]
        return names.index(str(value)) if words else value

    last = max(result.rung for result in scored)
    for reached, color in ((False, _GRAY), (True, _BLUE)):
        some = [result for result in scored if (result.rung == last) == reached]
        label = f"{sweep.settings.objective if reached else 'stopped'}, {_steps(some)}"
        x, y = [place(r) for r in some], [r.score for r in some]
        axes.plot(x, y, "o", color=color, markersize=4, alpha=0.8, label=label)
    bottom = min(result.score for result in scored if result.score is not None)
    axes.plot([place(r) for r in diverged], [bottom] * len(diverged), "x", color="#b5484f", markersize=5)
    if dimension.kind == "log_uniform":
        axes.set_xscale("log")
        # Of less than a decade some numbers between powers of ten, not all of them, which would overlap.
        axes.xaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(1.0, 0.1)))
    if words:
        axes.set_xticks(range(len(names)), names, rotation=20, fontsize=8)
    axes.set_xlabel(key)
    plain(axes, labelsize=8)


def _steps(results: Sequence[Result]) -> str:
    """The steps that trials have reached."""
    steps = sorted({result.step for result in results})
    return f"at {' to '.join(f'{step:,}' for step in dict.fromkeys([*steps[:1], *steps[-1:]]))} steps"


def _best(axes: Any, best: Sequence[Result]) -> None:
    """Draw scores of the best trials with their intervals over seeds, the best at the top; stopped ones in gray."""
    names = []
    for place, result in enumerate(best):
        (low, high), stopped = result.interval, result.rung < best[0].rung
        color = _GRAY if stopped else _BLUE
        axes.plot([low, high], [place, place], color=color, linewidth=2.5, alpha=0.45)
        axes.plot([result.score], [place], "o", color=color, markersize=5)
        names.append(f"trial {result.trial.number}" + (f"\n{_steps([result])}" if stopped else ""))
    axes.set_yticks(range(len(best)), names, fontsize=8)
    axes.invert_yaxis()
    seeds = len(best[0].of_seed)
    axes.set_xlabel(f"score (IQM over {seeds} seeds, {interval_name(seeds)})" if seeds > 1 else "score")
    plain(axes, labelsize=8)


def _curves(axes: Any, best: Sequence[Result]) -> None:
    """Draw mean training returns of the best trials over their seeds."""
    from matplotlib import colormaps
    from matplotlib.ticker import EngFormatter

    for place, result in enumerate(best):
        points: dict[int, list[float]] = {}
        for outcome in result.outcomes:
            for step, value in curve(outcome.path, outcome.row):
                points.setdefault(step, []).append(value)
        steps = sorted(points)
        color = colormaps["viridis"](place / max(len(best) - 1, 1) * 0.9)
        means, marker = [np.mean(points[step]) for step in steps], "o" if len(steps) == 1 else ""
        axes.plot(steps, means, color=color, marker=marker, label=str(result.trial.number))
    if any(line.get_xdata().size for line in axes.lines):
        axes.legend(title="trial", fontsize=7, title_fontsize=8, frameon=False, ncols=2)
    else:
        axes.text(0.5, 0.5, "no training episode ended", transform=axes.transAxes, ha="center", color="#444444")
        axes.set_xlim(0, best[0].step)
        axes.set_yticks([])
    axes.set_xlabel("environment steps of a run")
    axes.set_ylabel("training return (mean over seeds)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    plain(axes, labelsize=8)

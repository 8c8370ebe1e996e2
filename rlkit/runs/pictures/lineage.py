"""Pictures of a population: the hyper-parameters of its members over the steps of a run, and who copied whom."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.runs import metrics
from rlkit.runs.config.load import read as read_config
from rlkit.runs.pictures.curves import plain, save
from rlkit.runs.population import record
from rlkit.runs.run_directory import CONFIG
from rlkit.types import ConfigError

FILE = "population.png"
_LOG_FACTOR = 5.0  # greatest over least value from which on an axis is logarithmic


def ancestors(evolutions: Sequence[dict[str, Any]], member: int) -> list[int]:
    """Return which member the ancestor of a final member was in each interval, one that follows each evolution."""
    path = [member]
    for evolution in reversed(evolutions[1:]):
        path.append(evolution["parents"][path[-1]])
    return path[::-1]


def interval_scores(evolutions: Sequence[dict[str, Any]], scores: np.ndarray) -> np.ndarray:
    """Return the scores [E, P] float of the members in the interval that follows each evolution, NaN for none.

    Args:
      evolutions: as `record.read` returns them, E.
      scores: [P] float, of the last interval.
    """
    later = [[np.nan if x is None else x for x in evolution["scores"]] for evolution in evolutions[1:]]
    return np.array([*later, scores], np.float64)


def is_logarithmic(values: np.ndarray) -> bool:
    """Return True where the axis of values, NaN for none, is logarithmic: they are positive and far apart."""
    known = values[np.isfinite(values)]
    return bool(known.size) and 0 < known.min() < known.max() / _LOG_FACTOR


def figure(evolutions: Sequence[dict[str, Any]], scores: np.ndarray, end: int, *, title: str = "") -> Any:
    """Return a matplotlib Figure of a population's hyper-parameters.

    A line is a member: level while it trains, dotted where it became a copy, with a dot at the value that it began with
    as one. The broad band is the ancestry of the best member, the schedule that the population has found.

    Args:
      evolutions: as `record.read` returns them.
      scores: [P] float, the final scores; NaN for none. A line's color is the score at its end: of the evolution that
        follows, or the final one.
      end: environment steps at the end.
      title: text above the axes.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    hyper = record.hyper(evolutions)
    steps = np.array([evolution["step"] for evolution in evolutions] + [end])
    colored = interval_scores(evolutions, scores)
    known = colored[np.isfinite(colored)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    palette = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.92, 256)))  # without yellow, too pale on white
    colors = ScalarMappable(Normalize(low, high if high > low else low + 1.0), palette)
    best = int(np.nanargmax(scores)) if np.isfinite(scores).any() else None
    drawing = Figure(figsize=(7.0, 0.8 + 2.8 * len(hyper)), dpi=150, layout="constrained")
    panels = drawing.subplots(len(hyper), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, values) in zip(panels, hyper.items(), strict=True):
        for member in np.argsort(np.nan_to_num(scores, nan=-np.inf)):  # the best one on top
            shades = [colors.to_rgba(x) if np.isfinite(x) else "#999999" for x in colored[:, member]]
            _draw_member(axes, steps, values[:, member], evolutions, int(member), shades)
        if best is not None:
            path = ancestors(evolutions, best)
            schedule = values[np.arange(len(path)), path]
            axes.stairs(schedule, steps, baseline=None, color="#c9d6ea", linewidth=6.0, zorder=1.5)
        if is_logarithmic(values):
            axes.set_yscale("log")
        axes.set_ylabel(name)
        axes.margins(x=0.01)
        plain(axes)
    panels[0].set_title(title, fontsize=11, loc="left")
    caption = f"environment steps; broad band: the ancestry of the best member, {best}" if best is not None else None
    panels[-1].set_xlabel(caption or "environment steps")
    panels[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    bar = drawing.colorbar(colors, ax=list(panels), label="score of the member at that time", pad=0.02, aspect=30)
    if high == low:
        bar.set_ticks([low])
    return drawing


def _draw_member(
    axes: Any, steps: np.ndarray, values: np.ndarray, evolutions: Sequence[dict[str, Any]], member: int, colors: list
) -> None:
    """Draw one member's values [E]: a level line in the color of each interval, a dotted jump to each copy."""
    for index, (value, color) in enumerate(zip(values, colors, strict=True)):
        axes.plot(steps[index : index + 2], [value, value], color=color, linewidth=1.3, solid_capstyle="butt")
        if index and evolutions[index]["parents"][member] != member:
            jump = [values[index - 1], value]
            axes.plot([steps[index]] * 2, jump, color=color, linewidth=0.7, linestyle=(0, (1, 2)))
            axes.plot(steps[index], value, color=color, marker="o", markersize=3)


def draw(run: Path, *, title: str) -> None:
    """Write population.png in a run directory.

    Raises:
      ConfigError: the run is not one of a population, or its files are damaged.
    """
    if read_config(run / CONFIG).get("population") is None:
        raise ConfigError(f"run={str(run)!r} must be one of a population; train it with e.g. --population 16")
    lines, evolutions = metrics.read(run), record.read(run)
    end = lines[-1]["step"] if lines else 0
    save(figure(evolutions, record.latest_scores(run, end), end, title=title), run / FILE)

"""Learning curves of runs, with intervals over their seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs import files, metrics, run_directory
from rlkit.runs.config.load import read
from rlkit.types import ConfigError

COLORS = ("#3465a4", "#d9822b", "#4e9a5d", "#b5484f", "#7c5ca8", "#8a6d54", "#cc6fa5", "#7a7a7a")
_ROWS = 128  # metric lines are padded to multiples of it, so that curves of other lengths are the same program


class Curve(NamedTuple):
    """Returns over environment steps."""

    step: np.ndarray  # [L] int
    center: np.ndarray  # [L] float, interquartile mean over seeds; the mean over episodes where there is one seed
    low: np.ndarray  # [L] float, lower end of its 95% bootstrap interval; equal to the center where there is one seed
    high: np.ndarray  # [L] float, upper end
    seeds: int
    greedy: bool = False  # True for returns of evaluations
    seconds: np.ndarray | None = None  # [L] float, of training
    missing: int = 0  # metric lines that are left out, because some seed finished no episode

    def smoothed(self, window: int) -> "Curve":
        """Return the curve with means over the last `window` points, fewer at the start."""

        def mean(values: np.ndarray) -> np.ndarray:
            total = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
            last = np.arange(1, values.size + 1)
            first = np.maximum(last - window, 0)
            return (total[last] - total[first]) / (last - first)

        return self._replace(center=mean(self.center), low=mean(self.low), high=mean(self.high))


def curve(lines: Sequence[dict[str, Any]], run: Path | None = None) -> Curve:
    """Return the learning curve of metric lines; lines in which some seed finished no episode are left out.

    Where no line is left, as in a run that learns from a dataset, it is the curve of the evaluations.

    Args:
      lines: as `metrics.read` returns them.
      run: the run directory of the lines, for the error.

    Raises:
      ConfigError: there is no evaluation either.
    """
    rows = _rows(lines, "return_mean")
    greedy = not rows
    rows = rows or _rows(lines, "eval_return_mean")
    if not rows or len({row.shape for _, row in rows}) != 1:
        path = run_directory.METRICS if run is None else run / run_directory.METRICS
        raise ConfigError(f"{path} must hold a line in which every seed finished an episode; {_remedy(run)}")
    step = np.array([step for step, _ in rows])
    returns = np.array([row for _, row in rows], np.float32)  # [L, S]
    clock = {line["step"]: line.get("seconds", np.nan) for line in lines}
    seconds = np.array([clock[place] for place in step.tolist()], np.float64)
    missing = 0 if greedy else len(lines) - len(rows)
    center, low, high = (returns[:, 0],) * 3 if returns.shape[1] == 1 else _intervals(returns)
    return Curve(step, center, low, high, returns.shape[1], greedy, seconds, missing)


def _rows(lines: Sequence[dict[str, Any]], name: str) -> list[tuple[int, np.ndarray]]:
    """The step and the returns [S] of each line that has a number for every seed."""
    rows = [(line["step"], np.atleast_1d(np.asarray(line.get(name), object))) for line in lines]
    return [(step, row) for step, row in rows if all(isinstance(value, float | int) for value in row)]


def _remedy(run: Path | None) -> str:
    """A remedy for a run without a finished episode."""
    config = read(run / run_directory.CONFIG) if run is not None and (run / run_directory.CONFIG).exists() else {}
    if config.get("dataset") is not None and config.get("eval_every") is None:
        return "a run that learns from a dataset has episodes only in evaluations: train with eval_every"
    return "train longer"


def _intervals(returns: np.ndarray) -> tuple[np.ndarray, ...]:
    """The IQM over seeds and its interval, for each row of [L, S]."""
    import jax

    from rlkit.runs.scores import iqm_and_interval

    padded = np.pad(returns, ((0, -len(returns) % _ROWS), (0, 0)), mode="edge")
    return tuple(values[: len(returns)] for values in jax.device_get(jax.vmap(iqm_and_interval)(padded)))


def figure(curves: dict[str, Curve], *, title: str | None = None, x: str = "steps") -> Any:
    """Return a matplotlib Figure of named curves. It is no part of pyplot's state, so nothing has to be closed.

    Args:
      curves: by label.
      title: text above the axes; None for none.
      x: "steps" or "time", the horizontal axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from rlkit.runs.scores import interval_name

    drawing = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    axes = drawing.subplots()
    unit, divisor = time_unit(curves)
    intervals = " or ".join(sorted({interval_name(line.seeds) for line in curves.values() if line.seeds > 1}))
    greedy = all(line.greedy for line in curves.values())
    for index, (name, line) in enumerate(curves.items()):
        color = COLORS[index % len(COLORS)]
        label = f"{name} ({line.seeds} seeds)" if line.seeds > 1 else name
        label += ", evaluated" if line.greedy and not greedy else ""
        label = f" {label}" if label.startswith("_") else label  # which Matplotlib would leave out of the legend
        marker = "." if line.step.size == 1 else ""
        place = line.step if x == "steps" or line.seconds is None else line.seconds / divisor
        hidden = any(np.array_equal(line.center, other.center) for other in list(curves.values())[:index])
        style = (0, (3, 3)) if hidden else "-"  # dashed over an equal curve, which shows between the dashes
        axes.plot(place, line.center, color=color, linewidth=1.8, label=label, marker=marker, linestyle=style)
        axes.fill_between(place, line.low, line.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel("\n".join(["environment steps" if x == "steps" else f"{unit} of training", *_gaps(curves)]))
    returns = "greedy return" if greedy else "return"
    axes.set_ylabel(f"{returns} (IQM over seeds, {intervals})" if intervals else f"{returns} (mean over episodes)")
    axes.set_title(title or "", fontsize=11, loc="left")
    if x == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.01)
    plain(axes)
    if len(curves) > 1 or intervals:
        axes.legend(frameon=False, fontsize=9)
    return drawing


def plain(axes: Any, labelsize: int = 9) -> None:
    """Give axes thin lines and no frame."""
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", colors="#444444", labelsize=labelsize)
    axes.tick_params(which="minor", labelsize=labelsize - 2)


def time_unit(curves: dict[str, Curve]) -> tuple[str, float]:
    """Return the unit of time for the longest of the curves, and its seconds."""
    longest = max((line.seconds[-1] for line in curves.values() if line.seconds is not None), default=0.0)
    units = (("hours", 3600.0, 3 * 3600.0), ("minutes", 60.0, 180.0))
    return next(((name, size) for name, size, least in units if longest >= least), ("seconds", 1.0))


def _gaps(curves: dict[str, Curve]) -> list[str]:
    """A line of text for each curve with metric lines that are left out."""
    return [
        f"{name}: no episode ended in {line.missing} of {line.missing + line.step.size} metric lines"
        for name, line in curves.items()
        if line.missing
    ]


def plot(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "curves",
    *,
    title: str | None = None,
    x: str = "steps",
    smooth: int = 1,
) -> list[Path]:
    """Draw the learning curves of one or more runs as OUT.png and OUT.svg.

    Args:
      runs: a run directory, or several.
      out: path, with or without .png or .svg.
      title: text above the axes; None for the environment of a single run.
      x: "steps" or "time", the horizontal axis.
      smooth: metric lines whose mean a point is.

    Raises:
      ConfigError: a run has no finished episode and no evaluation, an argument is out of range, or `out` has no name or
        cannot be written.
    """
    if x not in ("steps", "time"):
        raise ConfigError(f"x={x!r} must be steps or time")
    if smooth < 1:
        raise ConfigError(f"smooth={smooth} must be at least 1, which smooths nothing")
    if Path(out).name in ("", ".."):
        raise ConfigError(f"out={str(out)!r} must end in a name for the pictures; try --out curves")
    paths = [run_directory.existing(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    names = [path.name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    curves = {label: curve(metrics.read(path), path) for label, path in zip(labels, paths, strict=True)}
    curves = {label: line.smoothed(smooth) for label, line in curves.items()} if smooth > 1 else curves
    if title is None and len(paths) == 1:
        title = str(read(paths[0] / run_directory.CONFIG).get("env", ""))
    stem = Path(out).with_suffix("") if Path(out).suffix in (".png", ".svg") else Path(out)
    drawing = figure(curves, title=title, x=x)
    targets = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for target in targets:
        save(drawing, target)
    return targets


def draw(run: Path, *, name: str, title: str) -> str | None:
    """Write curve.png in a run directory. Returns None, or the reason where there is no learning curve."""
    try:
        learning_curve = curve(metrics.read(run), run)
    except ConfigError as error:
        return str(error)
    save(figure({name: learning_curve}, title=title), run / "curve.png")
    return None


def save(drawing: Any, target: Path) -> None:
    """Write a figure atomically, in the format of the name's ending. Raises ConfigError where that fails."""
    import io

    data = io.BytesIO()
    drawing.savefig(data, format=target.suffix[1:], metadata={"Date": None} if target.suffix == ".svg" else {})
    with files.writing(target):
        files.replace(target, data.getvalue())

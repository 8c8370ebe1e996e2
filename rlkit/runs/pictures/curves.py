"""Learning curves of runs, with intervals over their seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs import files, metrics
from rlkit.types import ConfigError

_COLORS = ("#3465a4", "#d9822b", "#4e9a5d", "#b5484f", "#7c5ca8", "#8a6d54", "#cc6fa5", "#7a7a7a")


class Curve(NamedTuple):
    """Returns over environment steps."""

    step: np.ndarray  # [L] int
    center: np.ndarray  # [L] the interquartile mean over seeds; the mean over episodes where there is one seed
    low: np.ndarray  # [L] the 95% bootstrap interval of it; equal to the center where there is one seed
    high: np.ndarray  # [L]
    seeds: int
    greedy: bool = False  # whether the returns are those of evaluations


def curve(lines: Sequence[dict[str, Any]], run: Path | None = None) -> Curve:
    """The learning curve in metric lines; lines in which some seed finished no episode are left out.

    Where that leaves none, as in a run that learns from a dataset, it is the curve of the evaluations.

    Args:
      lines: as `metrics.read` gives them.
      run: where they are from, for the error.

    Raises:
      ConfigError: no line is left.
    """
    rows = _rows(lines, "return_mean")
    greedy = not rows
    rows = rows or _rows(lines, "eval_return_mean")
    if not rows or len({row.shape for _, row in rows}) != 1:
        path = files.METRICS if run is None else run / files.METRICS
        raise ConfigError(f"{path} must hold a line in which every seed finished an episode; {_remedy(run)}")
    step = np.array([step for step, _ in rows])
    returns = np.array([row for _, row in rows], np.float32)  # [L, S]
    if returns.shape[1] == 1:
        return Curve(step, returns[:, 0], returns[:, 0], returns[:, 0], 1, greedy)
    return Curve(step, *_intervals(returns), returns.shape[1], greedy)


def _rows(lines: Sequence[dict[str, Any]], name: str) -> list[tuple[int, np.ndarray]]:
    """The step and the returns [S] of each line that has a number for every seed."""
    rows = [(line["step"], np.atleast_1d(np.asarray(line.get(name), object))) for line in lines]
    return [(step, row) for step, row in rows if all(isinstance(value, float | int) for value in row)]


def _remedy(run: Path | None) -> str:
    """What gives a run its first episode."""
    from rlkit.runs.config.run_config import read

    config = {} if run is None else read(run / files.CONFIG)
    if config.get("dataset") is not None and config.get("eval_every") is None:
        return "from a dataset that is an evaluation: train with eval_every"
    return "train longer"


def _intervals(returns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The IQM over seeds and its interval, for each row of [L, S]."""
    import jax

    from rlkit.ops.statistics import iqm, iqm_interval

    @jax.jit
    @jax.vmap
    def row(returns):
        return iqm(returns), *iqm_interval(returns, jax.random.key(0))

    center, low, high = row(returns)
    return np.asarray(center), np.asarray(low), np.asarray(high)


def figure(curves: dict[str, Curve], *, title: str | None = None) -> Any:
    """A matplotlib Figure of named curves. It is no part of pyplot's state, so nothing has to be closed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    drawn = Figure(figsize=(7.0, 4.2), dpi=150, layout="constrained")
    axes = drawn.subplots()
    many = any(line.seeds > 1 for line in curves.values())
    greedy = all(line.greedy for line in curves.values())
    for index, (name, line) in enumerate(curves.items()):
        color = _COLORS[index % len(_COLORS)]
        label = f"{name} ({line.seeds} seeds)" if line.seeds > 1 else name
        label += ", evaluated" if line.greedy and not greedy else ""
        marker = "." if line.step.size == 1 else ""
        axes.plot(line.step, line.center, color=color, linewidth=1.8, label=label, marker=marker)
        axes.fill_between(line.step, line.low, line.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlabel("environment steps")
    returns = "greedy return" if greedy else "return"
    axes.set_ylabel(f"{returns} (IQM over seeds, 95% interval)" if many else f"{returns} (mean over episodes)")
    axes.set_title(title or "", fontsize=11, loc="left")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.01)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors="#444444", labelsize=9)
    if len(curves) > 1 or many:
        axes.legend(frameon=False, fontsize=9)
    return drawn


def plot(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> list[Path]:
    """Draw the learning curves of one or more runs as OUT.png and OUT.svg.

    Args:
      runs: run directories.
      out: path, with or without .png or .svg.
      title: above the axes; the environment where there is one run and no title.

    Raises:
      ConfigError: a run has no finished episode and no evaluation, or `out` has no name or cannot be written.
    """
    if Path(out).name in ("", ".."):
        raise ConfigError(f"out={str(out)!r} must end in a name, that of the pictures; try --out curves")
    paths = [files.open_run(run) for run in runs]
    names = [path.name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    curves = {label: curve(metrics.read(path), path) for label, path in zip(labels, paths, strict=True)}
    stem = Path(out).with_suffix("") if Path(out).suffix in (".png", ".svg") else Path(out)
    drawn = figure(curves, title=title)
    targets = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for target in targets:
        save(drawn, target)
    return targets


def draw(run: Path, *, name: str, title: str) -> None:
    """curve.png in a run directory, where it has a learning curve."""
    try:
        found = curve(metrics.read(run))
    except ConfigError:
        return
    save(figure({name: found}, title=title), run / "curve.png")


def save(drawn: Any, target: Path) -> None:
    """Write a figure whole or not at all, in the format of the name's ending. Raises ConfigError where it cannot."""
    import io

    data = io.BytesIO()
    drawn.savefig(data, format=target.suffix[1:], metadata={"Date": None} if target.suffix == ".svg" else {})
    try:
        files.replace(target, data.getvalue())
    except OSError as error:
        raise ConfigError(f"out={str(target)!r} must be writable: {error.strerror}; choose another path") from None

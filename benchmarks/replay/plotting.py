"""Plots of run.py's results."""

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rendering import NAMES_AND_COLORS, size, totals

STYLES = {"jit": {"linestyle": "-", "marker": "o"}, "python": {"linestyle": "--", "marker": "s"}}
LAYOUT_STYLES = (("o", 1.0), ("^", 0.7), ("D", 0.45))  # marker and opacity


def line(axes: Any, measured: Mapping[str, Any], library: str, mode: str, label: str, **style: Any) -> None:
    """Draw a library's cost in one mode, over the cases, with the range over rounds."""
    cases = [case for case in measured if totals(measured, (case, library, mode))]
    if not cases:
        return
    seconds = [totals(measured, (case, library, mode)) or [] for case in cases]
    x = [list(measured).index(case) for case in cases]
    center = [1e6 * statistics.median(one) for one in seconds]
    style = {"color": NAMES_AND_COLORS[library][1], "linewidth": 1.8, "markersize": 4} | STYLES[mode] | style
    axes.plot(x, center, label=label, **style)
    low, high = ([1e6 * end(one) for one in seconds] for end in (min, max))
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def few_decades(axes: Any) -> bool:
    low, high = axes.get_ylim()
    return high < 300 * low


def finish(axes: Any, cases: Iterable[str], title: str, xlabel: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [size(case) for case in cases]
    axes.set_xticks(range(len(names)), names)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades(axes) else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    many = len(axes.get_lines()) > 4
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(xlabel)
    axes.set_ylabel("us a cycle")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors="#444444", labelsize=9)
    axes.margins(x=0.06)
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2 if many else 4)


def libraries(axes: Any, measured: Mapping[str, Any], modes: Iterable[str], title: str, xlabel: str) -> None:
    """Draw every library in each mode."""
    modes = tuple(modes)
    for mode in modes:
        for library, (name, _) in NAMES_AND_COLORS.items():
            suffix = f", {'jit' if mode == 'jit' else 'Python'}" if len(modes) > 1 else ""
            line(axes, measured, library, mode, name + suffix)
    finish(axes, measured, title, xlabel)


def slices(axes: Any, measured: Mapping[str, Any]) -> None:
    """Draw rlkit's layouts in each mode, and TorchRL."""
    for (layout, part), (marker, opacity) in zip(measured.items(), LAYOUT_STYLES, strict=False):
        for mode in ("jit", "python"):
            label = f"rlkit, {'jit' if mode == 'jit' else 'Python'}, {layout}"
            line(axes, part["cases"], "rlkit", mode, label, marker=marker, alpha=opacity)
    first = next(iter(measured.values()))["cases"]
    line(axes, first, "torchrl", "python", "TorchRL, Python")
    finish(axes, first, "Slices: add 256 steps, sample 256 slices of 4", "steps stored")


def draw(results: Mapping[str, Any], target: Path) -> None:
    """Draw cost against capacity, batch size and steps stored, for the parts that were measured."""
    parts = {name: part["found"] for name, part in results.items()}
    panels = []
    if "prioritized" in parts:
        measured = parts["prioritized"]
        panels.append(lambda axes: libraries(axes, measured, ["jit"], "Prioritized, in one jitted scan", "capacity"))
        panels.append(
            lambda axes: libraries(axes, measured, ["python"], "Prioritized, as called from Python", "capacity")
        )
    if "batch" in parts:
        title = f"Prioritized, capacity {size(str(parts['batch']['capacity']))}"
        panels.append(lambda axes: libraries(axes, parts["batch"]["sizes"], STYLES, title, "batch"))
    if "slices" in parts:
        panels.append(lambda axes: slices(axes, parts["slices"]))
    if not panels:
        return
    from matplotlib.figure import Figure

    from rlkit.runs.pictures import curves

    rows = (len(panels) + 1) // 2
    figure = Figure(figsize=(10.5 if len(panels) > 1 else 5.5, 4.0 * rows), dpi=150, layout="constrained")
    grid = figure.subplots(rows, min(len(panels), 2), squeeze=False).flat
    for axes, panel in zip(grid, panels, strict=False):
        panel(axes)
    for axes in list(grid)[len(panels) :]:
        axes.set_visible(False)
    curves.save(figure, target)

"""Reports of runs: one HTML page with curves, comparisons, configs and versions."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlkit.runs import files, overview
from rlkit.runs.config.errors import show_value
from rlkit.runs.reports import diagnostics, figures, sweep_figures
from rlkit.runs.reports.page import Page, picture, plotly, table
from rlkit.runs.reports.reading import Run, read_runs
from rlkit.types import ConfigError

FILE = "report.html"
_TRIALS = 10  # of a sweep in the table
_COLUMNS = 4  # runs side by side in the summary; more are below each other


class Report:
    """A page about runs. In a notebook it shows itself."""

    def __init__(self, page: str, path: Path):
        self.html = page  # the whole page
        self.path = path  # of its file

    def __repr__(self) -> str:
        """Name the file."""
        return f"Report(path={str(self.path)!r})"

    def _repr_html_(self) -> str:
        """The page in a frame of its own."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:800px;border:1px solid #8888" '
            'title="report"></iframe>'
        )


def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Report:
    """Write a page about one or more runs or sweeps, which opens in a browser without a network.

    It is read from the records of the runs alone, so that a run in progress has one as well. What is damaged or missing
    in a run is named on the page.

    Args:
      runs: a run directory or the folder of a sweep, or several of them.
      out: the file; None for report.html, in the folder of a single run or sweep, otherwise in the current directory.

    Returns:
      The page and its path.

    Raises:
      ConfigError: plotly is not installed, there is no run or one of them is no run directory, a sweep has no
        table, or the file cannot be written.
    """
    plotly()
    paths = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    if not paths:
        raise ConfigError("runs=[] must name at least one run directory")
    target = Path(out) if out is not None else (paths[0] if len(paths) == 1 else Path()) / FILE
    if target.name in ("", "..") or target.is_dir():
        raise ConfigError(f"out={str(target)!r} must be a file; try {target / FILE}")
    paths = list(dict.fromkeys(paths))
    sweeps = [path for path in paths if (path / sweep_figures.CONFIG).is_file()]
    records = read_runs([path for path in paths if path not in sweeps])
    page = compose(records, [sweep_figures.read_trials(path) for path in sweeps]).render()
    with files.writing(target):
        files.replace(target, page.encode())
    return Report(page, target)


def compose(runs: Sequence[Run], sweeps: Sequence[sweep_figures.Trials] = ()) -> Page:
    """Return the page of runs and sweeps, of which there is at least one."""
    title = _title(runs) if runs else " and ".join(f"Sweep {trials.name}" for trials in sweeps)
    page = Page(title, [run.name for run in runs])
    for trials in sweeps:
        page.add(f"Trials of {trials.name}", _sweep(page, trials))
    if not runs:
        return page
    page.add("Summary", _summary(runs))
    page.add("Learning curves", "".join(page.figure(figure) for figure in figures.learning_curves(runs)))
    page.add("Final returns", "".join(page.figure(figure) for figure in figures.final_returns(runs)))
    page.add("Comparison of runs", "".join(page.figure(figure) for figure in figures.comparisons(runs)))
    pictures = [picture(*run.picture, run.name) for run in runs if run.picture is not None]
    page.add("Policies", f'<div class="pictures">{"".join(pictures)}</div>' if pictures else "")
    grids = [
        f'<h3>{html.escape(group)}</h3><div class="grid">{"".join(page.figure(f, "h4") for f in of_group)}</div>'
        for group, of_group in diagnostics.groups(runs).items()
    ]
    explained = "<p>Lines are means over seeds; shaded: from the lowest to the highest.</p>"
    page.add("Diagnostics", explained + "".join(grids) if grids else "")
    page.add("Configs", _side_by_side("key", runs, [run.overview.config for run in runs]))
    page.add("Versions and devices", _side_by_side("", runs, [run.overview.versions for run in runs]))
    page.notes += [f"{run.name}: {note}" for run in runs for note in run.notes]
    return page


def _sweep(page: Page, trials: sweep_figures.Trials) -> str:
    """The best trials of a sweep, the effect of each key, and parallel coordinates."""
    rows = sweep_figures.ranked(trials)
    shown = f"<h3>Best trials</h3><p>{min(len(rows), _TRIALS)} of {len(rows)} trials.</p>"
    shown += table(trials.header, rows[:_TRIALS])
    together = sweep_figures.parallel_coordinates(trials)
    if together is not None:
        shown += page.figure(together)
    grid = "".join(page.figure(figure, "h4") for figure in sweep_figures.effects(trials))
    explained = "A point is a trial, with the interval of its score over seeds; crosses diverged and have no score."
    return f'{shown}<h3>Effect of each key</h3><p>{explained}</p><div class="grid">{grid}</div>'


def _title(runs: Sequence[Run]) -> str:
    envs = list(dict.fromkeys(run.env for run in runs))
    if len(runs) == 1:
        return f"{runs[0].overview.config.get('agent', 'Run')} on {envs[0]}: {runs[0].name}"
    return f"{len(runs)} runs on {' and '.join(envs) if len(envs) <= 3 else f'{len(envs)} environments'}"


def _summary(runs: Sequence[Run]) -> str:
    """The scores of `rlkit compare`: a column for each run, or a row for each of many."""
    _, rows = overview.comparison([run.overview for run in runs])
    agents = ["agent", *(str(run.overview.config.get("agent", "-")) for run in runs)]
    envs = ["environment", *(run.env for run in runs)]
    rows = [row for row in rows if not row[0].startswith(("config: ", "version: "))]
    rows = [["run", *(run.name for run in runs)], agents, envs, *rows]
    if len(runs) > _COLUMNS:
        rows = [list(row) for row in zip(*rows, strict=True)]
    return table(rows[0], rows[1:])


def _side_by_side(heading: str, runs: Sequence[Run], mappings: Sequence[dict[str, Any]]) -> str:
    """A table of mappings with a column for each run, in which the keys that differ are marked."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    if not keys:
        return ""
    differ = overview.differences(mappings)
    rows = [[str(key), *(show_value(m[key]) if key in m else "-" for m in mappings)] for key in keys]
    shown = table([heading, *(run.name for run in runs)], rows, differ)
    if len(runs) == 1:
        return shown
    if not differ:
        return f"<p>They are the same in all runs.</p>{shown}"
    return f'<label class="filter"><input type="checkbox" checked>only what differs</label>{shown}'

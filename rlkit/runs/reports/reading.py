"""The records of the runs in a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs import files, overview
from rlkit.runs.pictures.curves import Curve, curve
from rlkit.runs.reports.statistics import finite
from rlkit.runs.scores import iqm_and_interval
from rlkit.types import ConfigError

_PICTURES = {
    "policy.gif": "image/gif",
    "policy.svg": "image/svg+xml",
    "policy.mp4": "video/mp4",
    "policy.webm": "video/webm",
}
_MAX_BYTES = 16 << 20  # of a picture


class Run(NamedTuple):
    """The records of a run."""

    name: str  # of its own in the report
    overview: overview.Overview
    training: Curve | None  # returns of training episodes
    greedy: Curve | None  # returns of evaluations
    returns: np.ndarray  # [S] float, the final mean return of each seed that has one
    episodes: np.ndarray  # [E] float, the returns of single greedy episodes at the end, of a run of one seed
    kind: str  # of which episodes these are: "greedy" or "training"
    picture: tuple[str, bytes] | None  # a GIF, drawing or video of the policy: its media type and bytes
    notes: list[str]  # what the report has to leave out, and why

    @property
    def lines(self) -> list[dict[str, Any]]:
        return self.overview.lines

    @property
    def env(self) -> str:
        return str(self.overview.config.get("env", "unknown environment"))

    @property
    def interval(self) -> tuple[float, float, float]:
        """The interquartile mean of `returns` and the ends of its interval: those of eval.json, or computed anew."""
        evaluation = self.overview.evaluation
        ends = evaluation.get("interval")
        if self.kind == "greedy" and evaluation.get("interval_over") == "seeds" and isinstance(ends, list):
            known = finite([evaluation.get("iqm"), *ends])
            if len(known) == 3:
                return known[0], known[1], known[2]
        center, low, high = (float(x) for x in iqm_and_interval(self.returns.astype(np.float32)))
        return center, low, high


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run directories. What is damaged or missing in one becomes a note.

    Raises:
      ConfigError: one of them is no run directory.
    """
    names = [path.resolve().name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    return [_read(path, label) for path, label in zip(paths, labels, strict=True)]


def _read(path: Path, name: str) -> Run:
    found, notes = overview.read_run(path), []
    if found.state.startswith("damaged"):
        notes.append(found.state)
    lines = found.lines
    if not lines and not notes:
        notes.append("no metric line has been written yet, so there is nothing to draw")
    training, greedy = _curve(lines, "return_mean"), _curve(lines, "eval_return_mean")
    if lines and training is None and greedy is None:
        notes.append("no metric line has a return that is finite for every seed, so there is no learning curve")
    values, kind = found.returns
    returns, episodes = np.array(finite(values)), np.array(finite(found.episode_returns))
    return Run(name, found, training, greedy, returns, episodes, kind, _picture(path, notes), notes)


def _curve(lines: Sequence[dict[str, Any]], key: str) -> Curve | None:
    """The curve of one kind of returns; None where there is none."""
    kept = [{name: line.get(name) for name in ("step", "seconds", key)} for line in lines]
    try:
        return curve(kept)
    except (ConfigError, TypeError, ValueError, OverflowError):
        return None


def _picture(path: Path, notes: list[str]) -> tuple[str, bytes] | None:
    """The picture of the policy in a run directory; None where there is none, or it is too long."""
    for name, media in _PICTURES.items():
        try:
            return media, files.read(path / name, _MAX_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            notes.append(f"{name} is left out: {error.strerror}")
    return None

"""The record of a population: population.jsonl, one JSON object for each evolution.

A line holds `step`, `scores` (of each member, null for none), `parents` (the member that each is a copy of, itself
where it survived) and `hyper` (each member's values after it, by key). The first line, of step 0, has the values of
the start, and no scores.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from annotated_types import Len
from pydantic import BaseModel, model_validator

from rlkit.runs import metrics, records, run_directory
from rlkit.runs import scores as stored_scores
from rlkit.runs.records import Count, Numbers
from rlkit.types import ConfigError

FILE = "population.jsonl"


def numbers(values: Any) -> list[float | None]:
    """Return numbers [P] with seven digits; None for those that are not finite."""
    return [metrics.number(value) for value in np.asarray(values, np.float64)]


def add(run: Path, step: int, scores: Any, parents: Any, hyper: Mapping[str, Any]) -> None:
    """Append an evolution to the record of a run."""
    line = {
        "step": step,
        "scores": numbers(scores),
        "parents": np.asarray(parents).tolist(),
        "hyper": {name: numbers(values) for name, values in sorted(hyper.items())},
    }
    records.append(run / FILE, line)


def cut(run: Path, step: int) -> list[dict[str, Any]]:
    """Remove the evolutions after `step`, and an unfinished last line; they will be written again.

    Returns:
      Those that are left.
    """
    path = run / FILE
    kept = [line for line in read(run) if line["step"] <= step] if path.exists() else []
    records.cut(path, len(kept))
    return kept


class _Evolution(BaseModel):
    """The entries of a line."""

    step: Count
    scores: Numbers
    parents: Annotated[list[Count], Len(1)]
    hyper: Annotated[dict[str, Numbers], Len(1)]

    @model_validator(mode="after")
    def _of_the_same_members(self) -> Self:
        number = len(self.parents)
        if any(len(values) != number for values in [self.scores, *self.hyper.values()]) or max(self.parents) >= number:
            raise ValueError
        return self


def read(run: Path) -> list[dict[str, Any]]:
    """Read the evolutions of a run; an unfinished last line is left out.

    Raises:
      ConfigError: there is no such file, or a line is not of this form.
    """
    return records.read_lines(run / FILE, _Evolution, "hold one evolution in each line", "train the run anew")


def hyper(evolutions: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the values [E, P] float64 of each key that evolved at any time, NaN where it did not, or is not finite."""
    missing = [np.nan] * len(evolutions[0]["parents"])
    names = dict.fromkeys(name for evolution in evolutions for name in evolution["hyper"])
    return {name: np.array([x["hyper"].get(name, missing) for x in evolutions], np.float64) for name in names}


def scores(lines: Sequence[Mapping[str, Any]], num_members: int) -> np.ndarray:
    """Return the scores [P] float64 of the members by the metric lines of an interval, NaN for none.

    They are the means of the last evaluation, or of all training episodes where there was no evaluation.
    """
    evaluated = [line["eval_return_mean"] for line in lines if "eval_return_mean" in line]
    if evaluated:
        return np.array(evaluated[-1], np.float64)  # NaN for None
    if not lines:
        return np.full(num_members, np.nan)
    means = np.array([line["return_mean"] for line in lines], np.float64)  # [L, P]
    counts = np.where(np.isfinite(means), np.array([line["episodes"] for line in lines], np.float64), 0.0)
    total = counts.sum(0)
    return np.where(total > 0, np.sum(np.nan_to_num(means) * counts, 0) / np.maximum(total, 1.0), np.nan)


def latest_scores(run: Path, step: int) -> np.ndarray:
    """Return the scores [P] float64 of a run's members at `step`, NaN for none.

    They are the means of eval.json where that is of this step, otherwise the scores since the last evolution, or in it.

    Raises:
      ConfigError: the run has no such files.
    """
    last = [line for line in read(run) if line["step"] <= step][-1:]
    if not last:
        raise ConfigError(f"{run / FILE} must begin at or before step {step}, and it does not; train the run anew")
    number = len(last[0]["parents"])
    try:
        evaluation = stored_scores.read(run)
        means = np.array(evaluation.get("mean_of_seed"), np.float64)  # NaN for None
        if evaluation.get("step") == step and means.shape == (number,):
            return means
    except ConfigError:
        pass
    lines = [line for line in metrics.read(run) if last[0]["step"] < line["step"] <= step]
    if not lines:
        return np.array(last[0]["scores"], np.float64)
    try:
        return np.broadcast_to(scores(lines, number), number)
    except (KeyError, ValueError):
        raise ConfigError(
            f"{run / run_directory.METRICS} must hold the returns of {number} members in each line, and it does not; "
            "train the run anew"
        ) from None


def best_member(run: Path, step: int) -> int:
    """Return the member of a population with the greatest of the latest scores at `step`; the first of equals, or of a
    run without scores."""
    try:
        found = latest_scores(run, step)
    except ConfigError:
        return 0
    return 0 if np.isnan(found).all() else int(np.nanargmax(found))

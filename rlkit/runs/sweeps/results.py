"""The results of a sweep: scores of trials, the table of all, and the config of the best."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs import files, scores
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.load import with_overrides
from rlkit.runs.sweeps.blocks import Outcome
from rlkit.runs.sweeps.config import Sweep
from rlkit.runs.sweeps.trials import Trial

TABLE, BEST = "trials.csv", "best.yaml"


class Result(NamedTuple):
    """A trial with its score."""

    trial: Trial
    status: str  # "done", "unfinished", "stopped" by halving, "diverged", "invalid", or "waiting"
    rung: int  # of halving that it has reached; rungs end at equal shares of the steps in the config
    step: int  # reached; of whole updates, so that trials of one rung may differ in it
    score: float | None  # interquartile mean over seeds; None where a seed diverged, or some have not ended
    interval: tuple[float | None, float | None]  # 95% bootstrap interval over seeds; of up to three seeds, their range
    of_seed: list[float | None]
    outcomes: list[Outcome]  # of each seed, in all rungs

    @property
    def order(self) -> tuple[float, float, float, int]:
        """A key that sorts the best first: by rung, score, then mean over seeds; those that diverged last."""
        if self.score is None:
            return (1, 0.0, 0.0, self.trial.number)
        return (-self.rung, -self.score, -float(np.mean(np.array(self.of_seed, np.float64))), self.trial.number)


def objective(outcome: Outcome, kind: str) -> float | None:
    """Return the score of a run: the last, the best or the mean greedy return; None where it diverged."""
    values = [value for _, value in outcome.evaluations]
    if outcome.final is None or kind == "final":
        return outcome.final
    return max([*values, outcome.final]) if kind == "best" else float(np.mean([*values, outcome.final]))


def score(trial: Trial, outcomes: Sequence[Outcome], sweep: Sweep, *, ended: bool) -> Result:
    """Return the result of a trial.

    Args:
      outcomes: of its seeds in all rungs that it has run in.
      ended: False where it goes no further although its run has not ended.
    """
    settings = sweep.settings
    rung = max((outcome.rung for outcome in outcomes), default=0)
    last = [outcome for outcome in outcomes if outcome.rung == rung]
    step = max((outcome.step for outcome in last), default=0)
    values = [objective(outcome, settings.objective) for outcome in last]
    if not values:
        return Result(trial, "waiting" if trial.config is not None else "invalid", 0, 0, None, (None, None), [], [])
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Result(trial, "diverged", rung, step, None, (None, None), values, list(outcomes))
    if len(values) < settings.seeds_per_trial:
        return Result(trial, "unfinished", rung, step, None, (None, None), values, list(outcomes))
    center, low, high = (float(x) for x in scores.iqm_and_interval(np.array(known, np.float32)))
    status = "stopped"
    if ended:
        whole = trial.config.num_updates * trial.config.steps_per_update
        status = "done" if step >= whole else "unfinished"
    return Result(trial, status, rung, step, center, (low, high), values, list(outcomes))


def table(results: Sequence[Result], sweep: Sweep) -> list[list[str]]:
    """Return the rows of the table of all trials, the header first."""
    seeds = range(sweep.settings.seeds_per_trial)
    first = sweep.base.get("seed", 0)
    names = [f"seed+{seed}" if "seed" in sweep.dimensions else f"seed_{first + seed}" for seed in seeds]
    header = ["trial", "status", "step", "score", "low", "high", *names]
    rows = [[*header, *sweep.dimensions]]
    for result in results:
        of_seed = [*result.of_seed, *[None] * len(seeds)][: len(seeds)]
        numbers = [result.score, *result.interval, *of_seed]
        values = [cell(result.trial.values[key]) for key in sweep.dimensions]
        rows.append([str(result.trial.number), result.status, str(result.step), *map(cell, numbers), *values])
    return rows


def write(folder: Path, results: Sequence[Result], sweep: Sweep) -> None:
    """Write trials.csv, and best.yaml where a trial has a score; each whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table(results, sweep))
    files.replace(folder / TABLE, text.getvalue().encode())
    found = best(results)
    if found is not None:
        files.replace(folder / BEST, best_config(found, sweep).encode())


def best(results: Sequence[Result]) -> Result | None:
    """Return the trial with the greatest score of those in the last rung; None where none has a score."""
    scored = [result for result in results if result.score is not None]
    return min(scored, key=lambda result: result.order) if scored else None


def best_config(result: Result, sweep: Sweep) -> str:
    """Return YAML text that trains a trial as it is, under all its seeds."""
    base = {key: value for key, value in sweep.base.items() if key not in sweep.own_code}
    values = with_overrides(base, result.trial.values)
    values["num_seeds"] = sweep.settings.seeds_per_trial
    low, high = result.interval
    seeds = len(result.of_seed)
    comment = f"# trial {result.trial.number}: {sweep.settings.objective} greedy return {result.score:.6g}, "
    interval = f"{scores.interval_name(seeds)} [{low:.6g}, {high:.6g}] over {seeds} seed(s) at step {result.step}"
    note = ", the best so far of a sweep that has not ended" if result.status == "unfinished" else ""
    return f"{comment}{interval}{note}\n{strict_yaml.dump(values)}"


def cell(value: Any) -> str:
    """Return a value as it stands in the table."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)

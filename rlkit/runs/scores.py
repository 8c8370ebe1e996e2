"""Scores of a policy: means, interquartile means and their intervals over episodes or seeds.

A number that is not finite, or that has no episode, is None, which JSON can represent.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
from annotated_types import Len
from pydantic import BaseModel

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import records, run_directory
from rlkit.runs.metrics import team_return
from rlkit.runs.programs.protocol import Program
from rlkit.runs.records import Count, Number, Numbers
from rlkit.training import Evaluation
from rlkit.types import ConfigError, PyTree, num_players

_MAX_RETURNS = 100_000  # of single episodes, in eval.json


@jax.jit
def iqm_and_interval(scores: jax.Array) -> tuple[jax.Array, ...]:
    """Return the interquartile mean of [N] scores, and the two ends of its 95% bootstrap interval."""
    return iqm(scores), *iqm_interval(scores, jax.random.key(0))


def interval_name(count: int) -> str:
    """Return the name of that interval over `count` scores: of up to three it is from the lowest to the highest."""
    return "range" if count <= 3 else "95% interval"


def _success_rates(result: Evaluation, batched: bool) -> list[float | None]:
    """The share of the finished episodes that were a success, for each seed; none where that is not known."""
    done = np.asarray(result.finished)
    successes = np.where(done, np.asarray(result.successes), np.nan)
    if np.isnan(successes).all():
        return []
    return [_mean(values[np.isfinite(values)]) for values in (successes if batched else successes[None])]


def _finished(result: Evaluation, batched: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of the finished episodes, for each seed."""
    returns, lengths, done = (np.asarray(x) if batched else np.asarray(x)[None] for x in result[:3])
    return [(r[d].astype(np.float64), n[d]) for r, n, d in zip(returns, lengths, done, strict=True)]


def _means_of_worlds(result: Evaluation, players: int) -> np.ndarray:
    """The mean return of the players of a world, for each finished episode of one seed."""
    returns, done = (np.asarray(x) for x in (result.returns, result.finished))
    returns, done = (x.reshape(-1, players, x.shape[-1]) for x in (returns.astype(np.float64), done))
    with np.errstate(invalid="ignore"):
        return returns.mean(1)[done.all(1)]


def _mean(values: np.ndarray) -> float | None:
    """The mean; None where there is no value or it is not finite."""
    with np.errstate(invalid="ignore"):  # of inf and -inf
        return _finite(values.mean()) if values.size else None


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def summary(result: Evaluation, batched: bool, env: Any = None) -> dict[str, Any]:
    """Return the entries of an evaluation in a metric line, lists with several seeds.

    They are return_mean, episodes, success_rate where the environment has successes, and team_return_mean where its
    players share their rewards. Returns are of players, episodes of worlds.
    """
    seeds = _finished(result, batched)
    line: dict[str, list[Any]] = {
        "return_mean": [_mean(returns) for returns, _ in seeds],
        "episodes": [int(returns.size) // num_players(env) for returns, _ in seeds],
    }
    if teams := [team_return(env, mean) for mean in line["return_mean"]]:
        line |= {name: [team[name] for team in teams] for name in teams[0]}
    if rates := _success_rates(result, batched):
        line["success_rate"] = rates
    return line if batched else {name: values[0] for name, values in line.items()}


def report(result: Evaluation, batched: bool, env: Any = None) -> dict[str, Any]:
    """Return the scores of an evaluation in eval.json.

    With several seeds the IQM is that of the seeds' means and the interval is over seeds; with one seed both are over
    its episodes, and do not measure the spread over seeds. Episodes that max_steps cut are counted as `unfinished` and
    are in no mean. Of several players, returns are of each, `players` is their number in a world, and episodes count
    worlds; the IQM and the interval over episodes are of the means over the players of each, who depend on each other.
    `returns` are those of the finished episodes of each seed; None where there are more than 100,000.
    """
    seeds = _finished(result, batched)
    total = int(np.asarray(result.finished).size)
    every, lengths = (np.concatenate(parts) for parts in zip(*seeds, strict=True))
    with np.errstate(invalid="ignore"):
        means = np.array([returns.mean() for returns, _ in seeds if returns.size])
    players = num_players(env)
    episodes = every if players == 1 else _means_of_worlds(result, players)
    values = means if batched else episodes
    center, low, high = map(_finite, iqm_and_interval(values.astype(np.float32))) if values.size else (None,) * 3
    mean = _mean(means)
    return {
        "episodes": every.size // players,
        "unfinished": (total - every.size) // players,
        **({"players": players} if players > 1 else {}),
        "mean": mean,
        **team_return(env, mean),
        "iqm": center,
        "interval": [low, high],
        "interval_over": "seeds" if batched else "episodes",
        "confidence": 0.95,
        "length_mean": _mean(lengths),
        **({"success_rate_of_seed": rates} if (rates := _success_rates(result, batched)) else {}),
        "mean_of_seed": [_mean(returns) for returns, _ in seeds],
        "min": _finite(every.min()) if every.size else None,
        "max": _finite(every.max()) if every.size else None,
        "returns": [[_finite(x) for x in returns] for returns, _ in seeds] if every.size <= _MAX_RETURNS else None,
    }


def evaluate(program: Program, state: PyTree, step: int) -> dict[str, Any]:
    """Play greedy episodes after `step` steps, and return the content of eval.json: scores, and how they were made."""
    run = program.config.run
    task = run.eval_task
    return {
        "env": task.env,
        "env_kwargs": json_value(task.kwargs),
        "wrappers": list(task.wrappers),
        "agent": run.agent,
        "step": step,
        "greedy": True,
        "seeds": program.seeds.tolist(),
        **report(program.evaluate(state), program.batched, program.eval_env),
    }


def json_value(value: Any) -> Any:
    """Return a value of a config as JSON can represent it: lists for tuples, text for numbers that are not finite."""
    if isinstance(value, tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: json_value(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save(run: Path, evaluation: Mapping[str, Any]) -> None:
    """Write eval.json, whole or not at all."""
    records.write(run / run_directory.EVALUATION, evaluation)


class _Stored(BaseModel, extra="allow"):
    step: Count = 0
    episodes: Count = 0
    seeds: list[int] = []
    mean: Number | None = None
    iqm: Number | None = None
    mean_of_seed: Numbers = []
    interval: Annotated[Numbers, Len(2, 2)] = [None, None]
    interval_over: Literal["seeds", "episodes"] = "seeds"
    returns: list[Numbers] | None = None


def read(run: Path) -> dict[str, Any]:
    """Read eval.json.

    Raises:
      ConfigError: it cannot be read, is no JSON object, or a field that is used has another type; the error names it.
    """
    path = run / run_directory.EVALUATION
    return records.read(path, _Stored, "hold an evaluation", "rlkit eval makes it anew").model_dump(exclude_unset=True)


def stored_mean(run: Path, step: int) -> float | None:
    """Return the mean return in eval.json; None where that is missing, damaged or of another step."""
    try:
        evaluation = read(run)
    except ConfigError:
        return None
    return evaluation.get("mean") if evaluation.get("step") == step else None


def evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """Return the scores of an evaluation, as `evaluate` makes it, in one line."""
    if not evaluation["episodes"]:
        return f"step {evaluation['step']}: no greedy episode ended"
    numbers = (evaluation["mean"], evaluation["iqm"], *evaluation["interval"])
    mean, center, low, high = ("not finite" if number is None else f"{number:.4g}" for number in numbers)
    return (
        f"step {evaluation['step']}: greedy return {mean}, IQM {center} "
        f"[{low}, {high}] over {len(evaluation['seeds'])} seed(s) and {evaluation['episodes']} episodes"
    )

"""Numbers that say how good a policy is: means, interquartile means and their intervals over episodes or seeds.

What is not finite, or has no episode, is None, which JSON has.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import files
from rlkit.training import Evaluation


@jax.jit
def iqm_and_interval(scores: jax.Array) -> tuple[jax.Array, ...]:
    """The IQM of [N] scores, and the ends of its 95% interval."""
    return iqm(scores), *iqm_interval(scores, jax.random.key(0))


def _finished(result: Evaluation, batched: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of the finished episodes, for each seed."""
    returns, lengths, done = (np.asarray(x) if batched else np.asarray(x)[None] for x in result)
    return [(r[d].astype(np.float64), n[d]) for r, n, d in zip(returns, lengths, done, strict=True)]


def _mean(values: np.ndarray) -> float | None:
    with np.errstate(invalid="ignore"):  # of inf and -inf
        return _finite(values.mean()) if values.size else None


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def summary(result: Evaluation, batched: bool) -> dict[str, Any]:
    """What a metric line says of an evaluation: return_mean and episodes, lists with several seeds."""
    seeds = _finished(result, batched)
    line = {
        "return_mean": [_mean(returns) for returns, _ in seeds],
        "episodes": [int(returns.size) for returns, _ in seeds],
    }
    return line if batched else {name: values[0] for name, values in line.items()}


def report(result: Evaluation, batched: bool) -> dict[str, Any]:
    """What eval.json says of an evaluation.

    With several seeds the IQM is that of the seeds' means and the interval is over seeds; with one seed both are over
    its episodes, and say nothing of other seeds. Episodes cut by max_steps are counted as `unfinished`, not averaged.
    """
    seeds = _finished(result, batched)
    total = int(np.asarray(result.finished).size)
    every, lengths = (np.concatenate(parts) for parts in zip(*seeds, strict=True))
    with np.errstate(invalid="ignore"):
        means = np.array([returns.mean() for returns, _ in seeds if returns.size])
    values = means if batched else every
    center, low, high = map(_finite, iqm_and_interval(values.astype(np.float32))) if values.size else (None,) * 3
    return {
        "episodes": every.size,
        "unfinished": total - every.size,
        "mean": _mean(means),
        "iqm": center,
        "interval": [low, high],
        "interval_over": "seeds" if batched else "episodes",
        "confidence": 0.95,
        "length_mean": _mean(lengths),
        "mean_of_seed": [_mean(returns) for returns, _ in seeds],
        "min": _finite(every.min()) if every.size else None,
        "max": _finite(every.max()) if every.size else None,
    }


def plain(value: Any) -> Any:
    """A value of a config as JSON has it: lists for tuples, words for numbers that are not finite."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def save(run: Path, evaluation: Mapping[str, Any]) -> None:
    """Write eval.json, whole or not at all."""
    files.replace(run / "eval.json", json.dumps(evaluation, indent=1, allow_nan=False).encode() + b"\n")

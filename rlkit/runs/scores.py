"""Numbers that say how good a policy is: means, interquartile means and their intervals over episodes or seeds."""

from typing import Any

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.training import Evaluation


@jax.jit
def iqm_and_interval(scores: jax.Array) -> tuple[jax.Array, ...]:
    """The IQM of [N] scores, and the ends of its 95% interval."""
    return iqm(scores), *iqm_interval(scores, jax.random.key(0))


def _finished(result: Evaluation, batched: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns and lengths of the finished episodes, for each seed."""
    returns, lengths, done = (np.asarray(x) if batched else np.asarray(x)[None] for x in result)
    return [(r[d].astype(np.float64), n[d]) for r, n, d in zip(returns, lengths, done, strict=True)]


def summary(result: Evaluation, batched: bool) -> dict[str, Any]:
    """What a metric line says of an evaluation: return_mean and episodes, lists with several seeds."""
    seeds = _finished(result, batched)
    line = {
        "return_mean": [float(returns.mean()) if returns.size else None for returns, _ in seeds],
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
    means = np.array([returns.mean() for returns, _ in seeds if returns.size])
    episodes = sum(returns.size for returns, _ in seeds)
    values = means if batched else seeds[0][0]
    center, low, high = map(float, iqm_and_interval(values.astype(np.float32))) if values.size else (None,) * 3
    return {
        "episodes": episodes,
        "unfinished": total - episodes,
        "mean": float(means.mean()) if means.size else None,
        "iqm": center,
        "interval": [low, high],
        "interval_over": "seeds" if batched else "episodes",
        "confidence": 0.95,
        "length_mean": float(np.concatenate([n for _, n in seeds]).mean()) if episodes else None,
        "mean_of_seed": [float(returns.mean()) if returns.size else None for returns, _ in seeds],
        "min": float(min(returns.min() for returns, _ in seeds if returns.size)) if episodes else None,
        "max": float(max(returns.max() for returns, _ in seeds if returns.size)) if episodes else None,
    }

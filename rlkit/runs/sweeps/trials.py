"""The trials of a sweep: their values, drawn at random or from a grid, the same ones every time."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.config.schema import schema
from rlkit.runs.sweeps.config import MAX_TRIALS, Sweep
from rlkit.types import ConfigError


class Trial(NamedTuple):
    """One choice of values."""

    number: int
    values: dict[str, Any]  # of the swept keys
    config: Any  # RunConfig of one seed; None where Optuna's values do not fit together


def draw(sweep: Sweep) -> list[Trial]:
    """Return all trials of a sweep that chooses them before it begins.

    Trial k does not depend on the number of trials. Values are checked before anything runs.

    Raises:
      ConfigError: a value does not fit the base config, or a grid is too large.
    """
    for values in ends(sweep):
        sweep.trial_config(values)
    trials = [
        Trial(number, values, sweep.trial_config(values))
        for number, values in enumerate(_grid(sweep) if sweep.settings.sampler == "grid" else _random(sweep))
    ]
    return trials[: affordable(sweep, trials)]


def ends(sweep: Sweep) -> list[dict[str, Any]]:
    """Return values of trials with each end of each range, and each value of each list, once at least."""
    found: list[dict[str, Any]] = []
    for key, dimension in sweep.dimensions.items():
        others = {other: rest.ends()[0] for other, rest in sweep.dimensions.items() if other != key}
        found += [{**others, key: value} for value in dimension.ends()]
    return found


def _random(sweep: Sweep) -> list[dict[str, Any]]:
    rngs = [np.random.default_rng([sweep.settings.sampler_seed, number]) for number in range(sweep.settings.trials)]
    return [{key: dimension.at(rng.random()) for key, dimension in sweep.dimensions.items()} for rng in rngs]


def _grid(sweep: Sweep) -> list[dict[str, Any]]:
    axes = [dimension.grid(key) for key, dimension in sweep.dimensions.items()]
    size = int(np.prod([len(axis) for axis in axes], dtype=object))
    if size > MAX_TRIALS:
        raise ConfigError(
            f"a grid of {size} trials must have at most {MAX_TRIALS}; try fewer values, or sampler: random"
        )
    return [dict(zip(sweep.dimensions, values, strict=True)) for values in itertools.product(*axes)]


def affordable(sweep: Sweep, trials: list[Trial]) -> int:
    """Return how many of the trials, from the first on, fit the budget.

    Raises:
      ConfigError: not even one does.
    """
    budget = sweep.settings.budget
    if budget is None:
        return len(trials)
    for count in range(len(trials), 0, -1):
        if num_steps(sweep, trials[:count]) <= budget:
            return count
    least = num_steps(sweep, trials[:1])
    raise ConfigError(f"budget={budget} must allow one trial, which takes {least} steps; try {least * len(trials)}")


def within_budget(sweep: Sweep) -> Sweep:
    """Return a sweep by Optuna with as many trials as fit the budget, each with the value that makes it longest.

    Raises:
      ConfigError: not even one does.
    """
    each = [Trial(0, values, sweep.trial_config(values)) for values in ends(sweep)]
    longest = max(each, key=lambda trial: trial.config.num_updates * trial.config.steps_per_update)
    count = affordable(sweep, [longest] * sweep.settings.trials)
    return sweep._replace(settings=sweep.settings.model_copy(update={"trials": count}))


def num_steps(sweep: Sweep, trials: list[Trial]) -> int:
    """Return the environment steps of all runs of a sweep that has these trials."""
    reached = [1.0] * len(trials)
    if sweep.settings.halving is not None:
        shares, counts = rungs(sweep.settings.halving, sweep.settings.rungs, len(trials))
        pairs = list(zip(shares, counts, strict=True))
        reached = [max(share for share, count in pairs if rank < count) for rank in range(len(trials))]
    steps = (
        rung_end(trial, share) * trial.config.steps_per_update for trial, share in zip(trials, reached, strict=True)
    )
    return sum(steps) * sweep.settings.seeds_per_trial


def rungs(halving: int, number: int, num_trials: int) -> tuple[list[float], list[int]]:
    """Return the share of a run at the end of each rung, and the trials that run in it.

    Successive halving (Jamieson and Talwalkar 2016): of the trials of a rung, the best 1 / halving go on.
    """
    shares = [float(halving) ** (rung + 1 - number) for rung in range(number)]
    counts = [max(1, -(-num_trials // halving**rung)) for rung in range(number)]
    return shares, counts


def rung_end(trial: Trial, share: float) -> int:
    """Return the update at which a share of a trial's run ends, at the end of a metric line."""
    config = trial.config
    lines = math.ceil(config.num_updates / config.updates_per_line)
    return min(config.num_updates, max(1, round(share * lines)) * config.updates_per_line)


def group_key(config: RunConfig) -> str:
    """Return what trials must have in common to be one program: all but the agent's Hyper, whose fields are traced."""
    hyper = schema(config.run.agent).models[2].model_fields
    return repr({key: value for key, value in config.flat().items() if key not in hyper})

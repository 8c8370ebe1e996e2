"""Blocks of a sweep: runs of several trials that are one program, each block in a folder as a run's is.

A block is checkpointed, stopped and continued as a run is, so that a sweep that was killed goes on with the same
numbers.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Len
from pydantic import BaseModel, FiniteFloat, NonNegativeInt

from rlkit import agents, hosts
from rlkit.runs import files, metrics, records, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.metrics import Line
from rlkit.runs.programs.finite import all_finite, floats
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.runs.programs.make import make_program
from rlkit.runs.programs.protocol import Program
from rlkit.runs.programs.state import Runs
from rlkit.runs.session import NonFiniteError, Session
from rlkit.runs.sweeps.trials import Trial
from rlkit.training import mesh
from rlkit.types import ConfigError, PyTree

RESULT, RUNS = "result.json", "runs.json"
AS_WRITTEN = "be as the sweep wrote it"  # the rule for JSON in its folder, with one of two remedies:
DELETE, PUT_BACK = "delete it and go on, and it is made again", "put it back, or start another sweep"
CHANGED = "must hold the block of this sweep, and the sweep has changed; start another one"

OnLine = Callable[[Line], None]


class Run(NamedTuple):
    """A trial under one seed."""

    trial: Trial
    seed: int


class Outcome(NamedTuple):
    """Scores of a run at the end of a block."""

    trial: int
    seed: int
    path: Path  # of the block
    row: int  # of the run in the block's states and metric lines
    size: int  # number of runs in these states
    rung: int  # number of earlier blocks of this run, 0 without halving
    step: int
    final: float | None  # mean greedy return at the end; None where the run diverged
    evaluations: list[list[float]]  # step and mean greedy return along the run, those of earlier rungs included


class _Result(BaseModel):
    """The content of result.json, as in an Outcome, for each run of a block."""

    step: NonNegativeInt
    final: list[FiniteFloat | None]
    evaluations: list[list[Annotated[list[FiniteFloat], Len(2, 2)]]]


class Stopped(Exception):
    """A signal stopped a block, which was saved. Its argument is the signal's number."""


def stack(runs: Sequence[Run], size: int) -> Runs:
    """Return seeds and Hyper of runs, filled up to `size` by copies of the last."""
    runs = [*runs, *[runs[-1]] * (size - len(runs))]
    module = agents.get(runs[0].trial.config.run.agent)
    each = [run.trial.config.hyper_arrays for run in runs]
    hyper = {name: np.array([values[name] for values in each]) for name in each[0]}
    return Runs(np.array([run.seed for run in runs], np.int32), module.Hyper(**hyper))


def block_config(run: Run, size: int, num_updates: int | None = None) -> RunConfig:
    """Return the config of a block of `size` runs that ends after `num_updates`; None for the end of the run.

    Metric lines, evaluations and checkpoints come where they do in a run to the end.
    """
    config = run.trial.config
    settings, steps = config.run, config.steps_per_update
    line = config.updates_per_line * steps
    update = {
        "num_seeds": size,
        "devices": settings.devices if size > 1 else 1,  # a single trial is not divided
        "seed": run.seed,
        "total_steps": (num_updates or config.num_updates) * steps,
        "log_every": line,
        "checkpoint_every": settings.checkpoint_every or max(line, settings.total_steps // 10),
        "keep_checkpoints": 1,
        "keep_best": False,
        "tensorboard": False,
        "wandb": None,
    }
    return dataclasses.replace(config, run=settings.model_copy(update=update))


def make(config: RunConfig, runs: Runs) -> Program:
    """Make the program of a block; one that goes on where a run of it diverges, if it is of several."""
    program = make_program(config, runs=runs)
    if isinstance(program, JaxProgram) and not hosts.is_host(config.run.env):
        program.stop_if_not_finite = False
    return program


def read(path: Path, runs: Sequence[Run], size: int, earlier: Sequence[Outcome | None]) -> list[Outcome] | None:
    """Return the outcomes of a block of `size` runs, copies included, that has ended; None where it has not.

    Raises:
      ConfigError: the folder holds a block of other runs, or a damaged file.
    """
    if (path / RUNS).is_file() and records.read(path / RUNS, list[Any], AS_WRITTEN, DELETE) != describe(runs):
        raise ConfigError(f"{path} {CHANGED}")
    if not (path / RESULT).is_file():
        return None
    result = records.read(path / RESULT, _Result, AS_WRITTEN, DELETE)
    if not len(result.final) == len(result.evaluations) == len(runs):
        raise ConfigError(f"{path / RESULT} must have {len(runs)} scores, and is damaged; {DELETE}")
    outcomes = []
    columns = zip(runs, earlier, result.final, result.evaluations, strict=True)
    for row, (run, before, final, along) in enumerate(columns):
        rung, so_far = (before.rung + 1, before.evaluations) if before else (0, [])
        place = run.trial.number, run.seed, path, row, size
        outcomes.append(Outcome(*place, rung, result.step, final, [*so_far, *along]))
    return outcomes


def describe(runs: Sequence[Run]) -> list[list[Any]]:
    """Return the trial, the seed and the values of each run, as JSON has them."""
    return json.loads(json.dumps([[run.trial.number, run.seed, run.trial.values] for run in runs]))


def execute(
    program: Program, path: Path, runs: Sequence[Run], first: Callable[[], PyTree] | None, step: int, on_line: OnLine
) -> None:
    """Train a block to its end, from its newest checkpoint if there is one, and write its result.

    Args:
      program: of the block; its first runs are these.
      path: the block's folder.
      runs: those whose results are written.
      first: the state at environment step `step`, where an earlier rung has led to it; None to begin anew.
      step: at which the block begins.
      on_line: called with each metric line.

    Raises:
      Stopped: by a signal; what was done is saved.
    """
    if not (path / RUNS).is_file():
        path.mkdir(parents=True, exist_ok=True)
        (path / run_directory.CHECKPOINTS).mkdir(exist_ok=True)
        files.replace(path / run_directory.CONFIG, program.config.resolved().encode())
        records.write(path / RUNS, describe(runs))

    final: list[float | None] = [None] * len(runs)
    try:
        with Session(program, path, lambda line, state: on_line(line), False, {}) as session:
            if checkpoint.steps(path):
                state, at, extra = checkpoint.restore(path, program.template)
                trained = session.resume(state, at, extra["metrics_length"], extra["seconds"])
            elif first is None:
                trained = session.start(None)
            else:
                trained = session.resume(first(), step, 0, 0.0)
        if trained.signal is not None:
            raise Stopped(trained.signal)
        assert trained.evaluation is not None
        means = trained.evaluation["mean_of_seed"]
        is_finite = jax.vmap(all_finite) if program.batched else all_finite
        finite = np.atleast_1d(is_finite(floats(program.agent.actor(trained.state.agent))))
        final = [mean if ok else None for mean, ok in zip(means[: len(runs)], finite, strict=False)]
    except NonFiniteError:  # of a program of a single run outside of JAX
        pass
    lines = metrics.read(path)
    result = {
        "step": program.config.num_updates * program.config.steps_per_update,
        "final": final,
        "evaluations": [_evaluations(lines, row) for row in range(len(runs))],
    }
    records.write(path / RESULT, result)


def gather(outcomes: Sequence[Outcome], program: Program, size: int) -> PyTree:
    """Return the states of runs, from the last checkpoints of their blocks, filled up to `size` by copies of the last.

    Args:
      outcomes: of the runs, in their new order.
      program: of the new block.
      size: number of runs in the new block.
    """
    places: dict[Path, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        places.setdefault(outcome.path, []).append(place)
    parts = []
    for path, of_block in places.items():
        of_runs = (runs,) if (runs := outcomes[of_block[0]].size) > 1 else ()  # the axis of the earlier block's states
        state, _, _ = checkpoint.restore(path, _template(program, of_runs))
        rows = np.array([outcomes[place].row for place in of_block])
        parts.append(_rows(state, rows) if of_runs else jax.tree.map(lambda x: x[None], state))
    order = np.argsort(np.concatenate(list(places.values())))
    whole = _rows(jax.tree.map(lambda *x: jnp.concatenate(x), *parts), order)
    return mesh.pad(whole, size) if size > 1 else jax.tree.map(lambda x: x[0], whole)


def _template(program: Program, axis: tuple[int, ...]) -> PyTree:
    """The template of a program like this one whose states have other leading axes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*axis, *x.shape[program.batched :]), x.dtype), program.template)


def _rows(state: PyTree, rows: np.ndarray) -> PyTree:
    """Some rows of all leaves [R, ...]."""
    return jax.tree.map(lambda x: x[rows], state)


def _evaluations(lines: Sequence[Mapping[str, Any]], row: int) -> list[tuple[int, float]]:
    """Steps and mean greedy returns of a run in the metric lines of a block, where it has a number."""
    name = "eval_return_mean"
    values = [(line["step"], np.atleast_1d(np.asarray(line[name], object))[row]) for line in lines if name in line]
    return [(step, value) for step, value in values if value is not None]

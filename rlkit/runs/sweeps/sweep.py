"""Sweeps: the loop over stages, with the table of what was found."""

import shlex
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlkit.names import OWN_CODE_KEYS
from rlkit.runs import files, run_directory
from rlkit.runs.config import strict_yaml
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.load import read
from rlkit.runs.config.run_config import absolute_dataset
from rlkit.runs.devices import require_one_process
from rlkit.runs.metrics import Line
from rlkit.runs.progress import make_display
from rlkit.runs.sweeps import results, trials
from rlkit.runs.sweeps.blocks import Outcome, Run, Stopped
from rlkit.runs.sweeps.config import Sweep, load_sweep
from rlkit.runs.sweeps.optuna_study import batches, open_storage, require
from rlkit.runs.sweeps.results import Result
from rlkit.runs.sweeps.stages import Stages, check
from rlkit.runs.sweeps.trials import Trial
from rlkit.types import ConfigError

CONFIG, BASE, RESOLVED = run_directory.SWEEP, "base.yaml", "resolved.yaml"


class Swept(NamedTuple):
    """Result of a sweep that reached its end or was stopped."""

    folder: Path
    results: list[Result]  # of all trials, the best first
    signal: int | None  # number of the signal that stopped the sweep
    num_programs: int  # programs that were compiled

    def __repr__(self) -> str:
        """Describe the sweep in two lines, with the score and the values of its best trial."""
        stopped = f", stopped by {signal.Signals(self.signal).name}" if self.signal is not None else ""
        first = f"Swept(folder={str(self.folder)!r}, {len(self.results)} trials{stopped})"
        top = results.best(self.results)
        if top is None:
            return f"{first}\n  no trial has a score"
        values = ", ".join(f"{key}={results.cell(value)}" for key, value in top.trial.values.items())
        return f"{first}\n  best score {top.score:.4g} (trial {top.trial.number}): {values}"


def sweep(
    source: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    show: bool = True,
) -> Swept:
    """Run the trials of a sweep in a new folder, or go on with one.

    All trials that differ in the agent's Hyper alone are one program, spread over all devices; others form groups, one
    program each. A folder that a kill has left is gone on with, with the same results.

    Args:
      source: a file, a name such as sweeps/ppo_cartpole, or the folder of a sweep.
      overrides: keys that replace those of the file; `storage`, a database, is only taken from here, also when going
        on.
      out: the folder; None for the first free name in ./runs.
      show: True to show progress.

    Returns:
      The folder, which holds trials.csv and best.yaml, and the results of all trials.

    Raises:
      ConfigError: a mistake in the config, or a folder that cannot be used; nothing was written.
    """
    require_one_process(f"sweep={str(source)!r}", "start one sweep a machine, which share a --storage URL")
    going_on = (Path(source) / CONFIG).is_file()
    if going_on and (out is not None or set(overrides or {}) - {*OWN_CODE_KEYS, "devices", "storage"}):
        raise ConfigError("a sweep that has begun goes on as it is; leave out the other flags, or start another one")
    sweep = load_sweep(source, overrides)
    if sweep.settings.storage is not None and "storage" not in (overrides or {}):
        raise ConfigError(
            f"storage={show_value(sweep.settings.storage)} opens a database, and no file may name one; add --storage "
            'URL, or overrides={"storage": URL} in Python'
        )
    if going_on:
        folder = Path(source)
        files.require_writable(folder, f"sweep={str(folder)!r}")
        _check_base(folder, sweep)
        if sweep.settings.sampler == "optuna":  # or all trials would be invalid where e.g. a dataset is missing
            _check_ends(sweep)
    else:
        sweep = _with_absolute_dataset(sweep)
        _check(sweep)
        folder = run_directory.create(out if out is not None else run_directory.next_free(sweep.name))
    with run_directory.locked(folder):
        if not going_on:
            _write(sweep, folder)
        return _Run(sweep, folder, show).run()


def _with_absolute_dataset(sweep: Sweep) -> Sweep:
    """The sweep with absolute paths of datasets, so that it goes on from any folder."""
    base = {key: absolute_dataset(value) if key == "dataset" else value for key, value in sweep.base.items()}
    dimensions = dict(sweep.dimensions)
    if (tried := dimensions.get("dataset")) is not None:
        dimensions["dataset"] = tried._replace(values=tuple(map(absolute_dataset, tried.values)))
    return sweep._replace(base=base, dimensions=dimensions)


def _check(sweep: Sweep) -> None:
    """Raise ConfigError for a mistake in a new sweep, before anything is written."""
    if sweep.settings.sampler == "optuna":
        _check_ends(sweep)
        trials.within_budget(sweep)
        if sweep.settings.storage is not None:
            open_storage(sweep.settings.storage)
    else:
        check(trials.draw(sweep))


def _write(sweep: Sweep, folder: Path) -> None:
    """Write a new sweep into its folder; sweep.yaml, with which a sweep has begun, is the last file."""
    run_directory.begin(folder)
    with files.writing(folder):
        (folder / run_directory.CHECKPOINTS).rmdir()
        files.replace(folder / RESOLVED, strict_yaml.dump(_resolved_base(sweep)).encode())
        files.replace(folder / BASE, strict_yaml.dump(sweep.base).encode())
        files.replace(folder / CONFIG, sweep.resolved().encode())


def _check_base(folder: Path, sweep: Sweep) -> None:
    """Raise ConfigError where a sweep that goes on would train with another base config than the one it began with."""
    began, now = read(folder / RESOLVED), strict_yaml.parse(strict_yaml.dump(_resolved_base(sweep)))
    for key, value in now.items():
        if key in began and began[key] != value:
            raise ConfigError(
                f"{key}={show_value(value)} must be {show_value(began[key])}, as when the sweep in {folder} began; "
                "change it back, or start another one"
            )


def _resolved_base(sweep: Sweep) -> dict[str, Any]:
    """Keys and values of the base config with defaults; without those that are swept or may differ when going on."""
    values = sweep.trial_config(trials.ends(sweep)[0]).flat()
    for key in {*sweep.dimensions, *sweep.own_code, "num_seeds", "devices"}:
        outer, _, inner = key.partition(".")
        if inner:
            values[outer] = {name: value for name, value in values[outer].items() if name != inner}
        else:
            del values[key]
    return values


def _check_ends(sweep: Sweep) -> None:
    """Raise ConfigError where a value that Optuna may choose is a mistake by itself."""
    require()
    check([Trial(0, values, sweep.trial_config(values)) for values in trials.ends(sweep)])


class _Run:
    def __init__(self, sweep: Sweep, folder: Path, show: bool):
        self.sweep, self.folder = sweep, folder
        self.stages = Stages(sweep, folder, self._on_step, self._on_block)
        self.outcomes: dict[int, list[Outcome]] = {}  # by trial
        self.alive: set[int] = set()  # trials that have not been stopped by halving
        self.trials: list[Trial] = []
        self.begin, self.resumed_at = time.monotonic(), 0
        self.done, self.total, self.show = 0, 1, show
        self.leader = (-np.inf, -1)  # the best mean training return so far, and its trial

    def run(self) -> Swept:
        received, steps = None, self._steps()
        self.display = make_display(self.total, show=self.show, describe=self._describe)
        with self.display, closing(self.stages), self.stages.signals:
            try:
                for _ in steps:
                    pass
            except Stopped as stopped:
                received, path = stopped.args[0], shlex.quote(str(self.folder))
                self.display.print(f"stopped and saved; continue with: rlkit sweep {path}")
        found = self.results()
        results.write(self.folder, found, self.sweep)
        return Swept(self.folder, sorted(found, key=lambda result: result.order), received, self.stages.num_programs)

    def _steps(self) -> Iterator[None]:
        """The stages of the sweep, each run when the next one is taken; sets the environment steps of all."""
        settings = self.sweep.settings
        if settings.sampler == "optuna":
            self.sweep = trials.within_budget(self.sweep)
            settings = self.sweep.settings
            config = self.sweep.trial_config(trials.ends(self.sweep)[0])
            self.total = trials.num_steps(self.sweep, [Trial(0, {}, config)] * settings.trials)
            return batches(self)
        self.trials = trials.draw(self.sweep)
        shares, counts = [1.0], [len(self.trials)]
        if settings.halving is not None:
            shares, counts = trials.rungs(settings.halving, settings.rungs, len(self.trials))
        self.total = trials.num_steps(self.sweep, self.trials)
        return self._rungs(shares, counts)

    def _rungs(self, shares: Sequence[float], counts: Sequence[int]) -> Iterator[None]:
        """Run every trial to its end, or the rungs of successive halving; yields after each."""
        running = list(self.trials)
        for rung, (share, count) in enumerate(zip(shares, counts, strict=True)):
            running = sorted(running, key=lambda trial: self.result(trial).order)[:count]
            self.alive = {trial.number for trial in running}
            if rung + 1 < len(shares):
                self.stages.prepare(running, counts[rung + 1], shares[rung + 1])
            earlier = {(one.trial, one.seed): one for of_trial in self.outcomes.values() for one in of_trial}
            self.stages.run(f"rung-{rung}", sorted(running, key=lambda trial: trial.number), share, earlier)
            yield

    def _on_block(self, outcomes: Sequence[Outcome]) -> None:
        """Take note of the outcomes of a block, and write the table."""
        for outcome in outcomes:
            self.outcomes.setdefault(outcome.trial, []).append(outcome)
        results.write(self.folder, self.results(), self.sweep)

    def result(self, trial: Trial) -> Result:
        """The result of a trial so far."""
        return results.score(trial, self.outcomes.get(trial.number, []), self.sweep, ended=trial.number in self.alive)

    def results(self) -> list[Result]:
        """The results of all trials so far, in their order."""
        return [self.result(trial) for trial in self.trials]

    def _on_step(self, steps: int, line: Line | None, runs: Sequence[Run]) -> None:
        """Show the progress after some steps of all runs; where there is no line, they were done before a restart."""
        self.done += steps
        if line is None:
            self.resumed_at += steps
            return
        returns: dict[int, list[float]] = {}
        for run, of_run in zip(runs, line.seeds, strict=False):
            if of_run["return_mean"] is not None:
                returns.setdefault(run.trial.number, []).append(of_run["return_mean"])
        means = [(float(np.mean(values)), number) for number, values in returns.items()]
        self.leader = max([*means, self.leader])
        elapsed = time.monotonic() - self.begin
        seconds = elapsed * self.done / max(self.done - self.resumed_at, 1)  # as if all had been done now
        self.display.update(min(self.done, self.total), {**line, "seconds": seconds})

    def _describe(self, step: int, total: int, line: dict[str, Any]) -> str:
        """Trials that have a score, and the best so far: by score, or by training return while there is none."""
        found = [result for result in self.results() if result.score is not None]
        best = results.best(found)
        text = f"{step / total:.0%} of all steps, {len(found)} of {max(len(self.trials), 1)} trials scored"
        if best is not None:
            return f"{text}, best {best.score:.4g} (trial {best.trial.number})"
        value, number = self.leader
        return f"{text}, best return {value:.4g} (trial {number})" if number >= 0 else text

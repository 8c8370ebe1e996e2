"""Training and resuming of runs: the loop around a compiled program, with its clock, files, display and signals."""

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rlkit.hosts.pool import HostError
from rlkit.hosts.processes import Interrupted
from rlkit.runs import device_memory, files, run_directory, scores
from rlkit.runs.checkpoints import checkpoint, transfer
from rlkit.runs.config.load import load_config
from rlkit.runs.config.parse import parse
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.metrics import MetricLines, require_writers, summarize
from rlkit.runs.pictures import curves
from rlkit.runs.policy import dataset_streams, stored_config
from rlkit.runs.programs.make import make_program
from rlkit.runs.programs.protocol import Chunk, Program
from rlkit.runs.progress import make_display
from rlkit.runs.schedule import Schedule
from rlkit.runs.signals import Signals
from rlkit.runs.versions import versions
from rlkit.types import ConfigError, PyTree

OnChunk = Callable[[dict[str, Any], PyTree], bool | None]


class NonFiniteError(RuntimeError):
    """A loss, observation, reward or parameter became NaN or infinite. The last finite state was saved."""


class Trained(NamedTuple):
    """Result of a run that reached its end or was stopped."""

    run: Path
    state: PyTree  # a TrainState; leaves [S, ...] with several seeds
    evaluation: dict[str, Any] | None  # the content of eval.json; None where the run was stopped by a signal
    signal: int | None  # number of the signal that stopped the run, e.g. signal.SIGINT


def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    on_chunk: OnChunk | None = None,
    *,
    out: str | Path | None = None,
    init_from: str | Path | None = None,
    show: bool = True,
) -> Trained:
    """Train a config in a new run directory.

    Args:
      config: a RunConfig, a flat mapping of its keys, or an argument of `load_config`.
      on_chunk: called with each metric line and the state after it; a true result ends the run.
      out: the run directory; None for the first free name in ./runs.
      init_from: a run whose agent's parameters and statistics this one starts with.
      show: True to show progress.

    Returns:
      The run directory, the last state and its evaluation.

    Raises:
      ConfigError: a mistake in the config, or a directory that cannot be used; nothing was written.
      NonFiniteError: a quantity is not finite; the last finite state is a checkpoint of the run.
      HostError: an environment outside of JAX fails; the last state is a checkpoint of the run.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    elif not isinstance(config, RunConfig):
        config = parse(config)
    require_writers(config)
    with closing(make_program(config)) as program:
        program.check()
        device_memory.require(program)
        learned = transfer.load(program, init_from) if init_from is not None else None
        run = run_directory.create(out if out is not None else run_directory.next_free(config.name))
        with run_directory.locked(run):
            try:
                files.replace(run / "versions.json", json.dumps(versions(), indent=1).encode() + b"\n")
                if init_from is not None:
                    files.replace(run / run_directory.INIT_FROM, os.fsencode(os.path.abspath(init_from)))
                files.replace(run / run_directory.CONFIG, config.resolved().encode())
            except OSError as error:
                raise ConfigError(f"out={str(run)!r} must be writable: {error.strerror}; choose another") from None
            with Run(program, run, on_chunk, show) as session:
                return session.start(learned)


def resume(run: str | Path, on_chunk: OnChunk | None = None, *, env: str | None = None, show: bool = True) -> Trained:
    """Continue a run from its newest whole checkpoint, as if it had never stopped.

    The state of an environment outside of JAX cannot be stored: there, new episodes begin.

    Args:
      run: a run directory.
      on_chunk, show: as for `train`.
      env: the run's environment again, where it is the user's own code (`module:Class`): no code runs because a file
        names it.

    Raises:
      ConfigError: there is no such run, no checkpoint that fits its config, or another process trains it.
      NonFiniteError, HostError: as for `train`.
    """
    path = run_directory.existing(run)
    files.require_writable(path, f"run={str(run)!r}")
    config = stored_config(path, env)
    require_writers(config)
    with run_directory.locked(path):
        checkpoints = checkpoint.Reader(path)
        with closing(make_program(config, dataset_streams(checkpoints.extra()))) as program:
            if not checkpoint.steps(path) and not (path / run_directory.METRICS).exists():
                source = run_directory.read_init_from(path)
                learned = transfer.load(program, source) if source else None
                with Run(program, path, on_chunk, show) as session:  # it was stopped before its first step
                    return session.start(learned)
            state, step, extra = checkpoints.restore(program.template)
            length, seconds = extra.get("metrics_length"), extra.get("seconds")
            if not isinstance(length, int) or not isinstance(seconds, int | float) or not 0 <= length < 2**62:
                raise ConfigError(
                    f"run={str(run)!r} must hold a checkpoint of a run, and step {step} is none; train it anew"
                )
            checkpoint.clean(path)
            with Run(program, path, on_chunk, show) as session:
                return session.resume(state, step, length, seconds)


class Run:
    """A run in progress: a compiled program with its files, display and signals."""

    def __init__(self, program: Program, path: Path, on_chunk: OnChunk | None, show: bool):
        config = program.config
        self.program, self.path, self.config, self.on_chunk = program, path, config, on_chunk
        self.batch, self.schedule = config.steps_per_update, Schedule(config)
        self.display = make_display(config.num_updates * self.batch, show=show)
        self.background, self.signals = ThreadPoolExecutor(1), Signals()

    def __enter__(self) -> "Run":
        self.display.__enter__()
        if self.program.note:
            self.display.print(self.program.note)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.background.shutdown(cancel_futures=True)
        self.display.__exit__(*exception)

    def start(self, learned: transfer.Learned | None) -> Trained:
        """Train from the first step, with the parameters and statistics of another run where they are given."""
        with self.signals:
            first_state = self.background.submit(self.program.start)  # two compilations side by side
            self.program.compile()
            state = first_state.result()
            if learned is not None:
                state = state.replace(agent=transfer.into(state.agent, learned))
            checkpoint.save(self.path, 0, state, self._extra(0, 0.0))
            state, step = self._train(state, 0, 0, 0.0)
        return self._end(state, step)

    def resume(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> Trained:
        """Train from environment step `step` to the end."""
        with self.signals:
            state, step = self._train(state, step, metrics_length, seconds)
        return self._end(state, step)

    def _train(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> tuple[PyTree, int]:
        """Train from environment step `step` to the end or a signal; the last state and its step."""
        update, stop, signals = step // self.batch, False, self.signals
        if update < self.config.num_updates:
            self.program.compile()  # before the clock starts
        if signals.received is None:
            self.prepared = self.background.submit(self._prepare_evaluation)
        lines = MetricLines(self.path, self.config, length=metrics_length, step=step)
        with closing(lines):
            self.program.should_stop = lambda: signals.received is not None
            while update < self.config.num_updates and not stop and signals.received is None:
                begin = time.perf_counter()
                num_updates = self.schedule.next_line(update) - update
                try:
                    chunk = self.program.advance(state, np.int32(num_updates))
                except (HostError, ConfigError):
                    self._save(state, step, lines, seconds)
                    raise
                count = int(chunk.count)  # waits for the device
                elapsed = time.perf_counter() - begin
                if not chunk.finite:
                    self._fail(state, chunk, update, lines, seconds)
                if not count:  # a signal came before the first of these updates
                    self._save(state, step, lines, seconds)
                    break
                state, update, seconds = chunk.state, update + count, seconds + elapsed
                step = update * self.batch
                line = self._metric_line(chunk, step, seconds, elapsed)
                if self.schedule.evaluates(update):
                    try:
                        line |= self._evaluate(state)
                    except (HostError, ConfigError):
                        lines.add(line)
                        self._save(state, step, lines, seconds)
                        raise
                lines.add(line)
                self.display.update(step, line)
                stop = bool(self.on_chunk and self.on_chunk(line, state))
                if stop or signals.received is not None or self.schedule.saves(update):
                    self._save(state, step, lines, seconds)
        return state, step

    def _metric_line(self, chunk: Chunk, step: int, seconds: float, elapsed: float) -> dict[str, Any]:
        """The metric line of a chunk that took `elapsed` seconds and ended at environment step `step`."""
        count, num_seeds = int(chunk.count), self.config.run.num_seeds
        return {
            "step": step,
            "seconds": round(seconds, 3),
            "steps_per_second": round(count * self.batch * num_seeds / elapsed, 1),
            **summarize({name: np.asarray(x)[:count] for name, x in chunk.metrics.items()}, num_seeds),
        }

    def _end(self, state: PyTree, step: int) -> Trained:
        """Evaluate and draw the learning curve, unless a signal stopped the run."""
        if self.signals.received is not None:
            self.display.print(f"stopped at step {step} and saved; continue with: rlkit resume {self.path}")
            return Trained(self.path, state, None, self.signals.received)
        self.prepared.result()
        evaluation = scores.evaluate(self.program, state, step)
        scores.save(self.path, evaluation)
        curves.draw(self.path, name=self.config.run.agent, title=self.config.run.env)
        return Trained(self.path, state, evaluation, None)

    def _evaluate(self, state: PyTree) -> dict[str, Any]:
        """The entries of greedy episodes in a metric line; none where a signal ends the episodes."""
        self.prepared.result()
        try:
            summary = scores.summary(self.program.evaluate(state), self.program.batched)
        except Interrupted:
            return {}
        return {f"eval_{name}": value for name, value in summary.items()}

    def _prepare_evaluation(self) -> None:
        """Compile evaluations, and compile and import what the end of a run needs."""
        run = self.config.run
        self.program.compile_evaluation()
        scores.iqm_and_interval(np.zeros(run.num_seeds if self.program.batched else run.eval_episodes, np.float32))
        importlib.import_module("matplotlib.backends.backend_agg")

    def _save(self, state: PyTree, step: int, lines: MetricLines, seconds: float) -> None:
        """Write a checkpoint, after the metric lines up to it."""
        extra = self._extra(lines.sync(), seconds)
        checkpoint.save(self.path, step, state, extra, keep=self.config.run.keep_checkpoints)

    def _extra(self, metrics_length: int, seconds: float) -> dict[str, Any]:
        """The values of a checkpoint beside the state."""
        return {"metrics_length": metrics_length, "seconds": seconds, "streams": self.program.num_streams}

    def _fail(self, state: PyTree, chunk: Chunk, update: int, lines: MetricLines, seconds: float) -> NoReturn:
        """Save the last finite state of a chunk that began with `state`, and raise NonFiniteError."""
        failed_step = (update + int(chunk.count)) * self.batch
        last_finite_step = failed_step - self.batch
        state = self.program.state_before_last(state, chunk)
        self._save(state, last_finite_step, lines, seconds)
        quantity = self.program.name_non_finite(state, chunk)
        raise NonFiniteError(
            f"{quantity} is not finite after step {failed_step}; the state of step {last_finite_step} was kept; "
            "a smaller learning_rate or max_grad_norm may help"
        )

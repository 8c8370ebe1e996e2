"""A session of training: the loop around a compiled program, with its clock, files, display and signals."""

import shlex
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rlkit.hosts.failure import Failure, HostError
from rlkit.runs import hints, records, run_directory, scores, transfer
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.schedule import Schedule
from rlkit.runs.devices import lost_process
from rlkit.runs.evaluations import Evaluations
from rlkit.runs.metrics import Line, MetricLines, NoLines, additional, summarize
from rlkit.runs.programs import shards
from rlkit.runs.programs.finite import largest_reward, remedy
from rlkit.runs.programs.parts import Parts
from rlkit.runs.programs.protocol import Chunk, Program
from rlkit.runs.progress import make_display
from rlkit.runs.signals import Signals
from rlkit.training import processes
from rlkit.types import ConfigError, PyTree, num_players

OnChunk = Callable[[Line, PyTree], Mapping[str, Any] | bool | None]


class NonFiniteError(RuntimeError):
    """A loss, observation, reward or parameter became NaN or infinite. The last finite state was saved."""


class Trained(NamedTuple):
    """Result of a run that reached its end or was stopped."""

    run: Path
    state: PyTree  # a TrainState; leaves [S, ...] with several seeds
    evaluation: dict[str, Any] | None  # the content of eval.json; None without one, or after a signal
    signal: int | None  # number of the signal that stopped the run, e.g. signal.SIGINT

    def __repr__(self) -> str:
        """Describe the result in two lines, without the arrays of the state."""
        updates = int(np.ravel(self.state.step)[0])
        if self.evaluation is not None:
            rest = scores.evaluation_line(self.evaluation)
        else:
            rest = "not evaluated" if self.signal is None else f"stopped by {signal.Signals(self.signal).name}"
        return f"Trained(run={str(self.run)!r}, after {updates} updates)\n  {rest}"


class Session:
    """A run in progress: a compiled program with its files, display and signals."""

    def __init__(
        self,
        program: Program,
        path: Path,
        on_chunk: OnChunk | None,
        show: bool,
        constants: Mapping[str, Any],
        best: tuple[int, float] | None = None,
        due: bool = False,
    ):
        config = program.config
        self.constants = constants  # stored in each checkpoint
        self.program, self.path, self.config, self.on_chunk = program, path, config, on_chunk
        self.batch, self.schedule = config.steps_per_update, Schedule(config)
        self.writes = processes.is_first()
        self.display = make_display(config.num_updates * self.batch, show=show and self.writes)
        self.background, self.signals = ThreadPoolExecutor(1), Signals()
        self.evaluations = Evaluations(program, self.background, best, due)
        self.step, self.began = 0, (0, 0.0)  # environment steps; they and seconds of training when the session began
        self.faults = path / run_directory.FAULTS
        if self.writes and self.faults.exists():
            records.cut(self.faults)
        program.on_failure, program.on_progress = self._report_failure, self.display.print

    def __enter__(self) -> "Session":
        lost_process.in_run(self.path)
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
            state = self.program.export(first_state.result())
            if learned is not None:
                state = state.replace(agent=transfer.into(state.agent, learned))
            if self.writes:
                checkpoint.save(self.path, 0, state, self._extra(0, 0.0))
            state, step = self._train(state, 0, 0, 0.0)
        return self._end(state, step)

    def resume(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> Trained:
        """Train from environment step `step` to the end."""
        if step >= self.config.num_updates * self.batch:
            self.display.print(f"all {step:,} steps are done; a greater total_steps makes the run longer")
        with self.signals:
            state, step = self._train(state, step, metrics_length, seconds)
        return self._end(state, step)

    def _train(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> tuple[PyTree, int]:
        """Train from environment step `step` to the end or a signal; the last state and its step."""
        update, stop, signals = step // self.batch, False, self.signals
        signals.look()
        self.step, self.began = step, (step, seconds)
        if update < self.config.num_updates:
            self.program.compile()  # before the clock starts
        if signals.agreed is None:
            self.evaluations.prepare()
        show_hints = hints.HintsOfLines(self.config, num_players(self.program.env), seconds, self.display.print)
        lines = MetricLines(self.path, self.config, length=metrics_length, step=step) if self.writes else NoLines()
        parts = Parts(self.program.most_updates)
        with closing(lines):
            self.program.should_stop = lambda: signals.received is not None
            goes_on = update < self.config.num_updates and signals.agreed is None
            if self.evaluations.due and goes_on and self.config.run.keep_best:
                self.evaluations.is_best({"step": step, **self.evaluations.entries(state)})
            while update < self.config.num_updates and not stop and (parts.pending or signals.agreed is None):
                begin, end = time.perf_counter(), self.schedule.next_line(update)
                try:
                    chunk = self.program.advance(state, processes.agree(parts.count(end - update)))
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
                self.step = step = update * self.batch
                parts.add(chunk, elapsed)
                signals.look()
                if parts.most is not None and update < end and signals.agreed is None:
                    continue  # to the end of the line
                line = self._metric_line(parts, seconds)
                if self.schedule.evaluates(update):
                    try:
                        line |= self.evaluations.entries(state)
                    except (HostError, ConfigError):
                        lines.add(line)
                        self._save(state, step, lines, seconds)
                        raise
                self.display.update(step, line)
                if update < self.config.num_updates:
                    show_hints(line, self.evaluations)
                best = self.evaluations.is_best(line)
                stop = self._write(line, state, lines)
                stopped = signals.look() is not None
                if best or stop or stopped or self.schedule.saves(update):
                    self._save(state, step, lines, seconds)
        return state, step

    def _write(self, line: dict[str, Any], state: PyTree, lines: MetricLines) -> bool:
        """Write a metric line, with the numbers that `on_chunk` adds to it; True where `on_chunk` ends the run."""
        result = None
        try:
            if self.on_chunk is not None:
                result = self.on_chunk(Line(line, self.config.run.num_seeds), self.program.export(state))
                if isinstance(result, Mapping):
                    line |= additional(result, line, self.config.run.num_seeds)
        finally:
            lines.add(line)
        return bool(processes.agree(np.bool_(bool(result) and not isinstance(result, Mapping))))

    def _report_failure(self, failure: Failure) -> None:
        self.display.print(str(failure))
        if self.writes:
            records.append(self.faults, {"step": self.step, **failure._asdict()})

    def _metric_line(self, parts: Parts, seconds: float) -> dict[str, Any]:
        """The metric line of the updates since the last one, after `seconds` of training."""
        count, metrics, elapsed = parts.join()
        num_seeds, steps = self.config.run.num_seeds, count * self.batch
        if self.step == self.config.num_updates * self.batch:
            # Where environments step during updates, the last rollout was collected before this chunk began.
            steps, elapsed = self.step - self.began[0], seconds - self.began[1]
        return {
            "step": self.step,
            "seconds": round(seconds, 3),
            "steps_per_second": round(steps * num_seeds / elapsed, 1),
            **summarize(metrics, num_seeds, self.program.env),
        }

    def _end(self, state: PyTree, step: int) -> Trained:
        """Evaluate, unless a signal stopped the run."""
        state = self.program.export(state)
        if self.signals.look() is not None:
            path = shlex.quote(str(self.path))
            self.display.print(f"stopped at step {step} and saved; continue with: rlkit resume {path}")
            return Trained(self.path, state, None, self.signals.agreed)
        evaluation = self.evaluations.last(state, step)
        if evaluation is not None and self.writes:
            scores.save(self.path, evaluation)
        return Trained(self.path, state, evaluation, None)

    def _save(self, state: PyTree, step: int, lines: MetricLines, seconds: float) -> None:
        """Write a checkpoint, after the metric lines up to it."""
        extra, state = self._extra(lines.sync(), seconds), self.program.export(state)
        if not self.writes:
            return
        best = self.evaluations.best[0] if self.evaluations.best else None
        checkpoint.save(self.path, step, state, extra, keep=self.config.run.keep_checkpoints, best=best)

    def _extra(self, metrics_length: int, seconds: float) -> dict[str, Any]:
        """The values of a checkpoint beside the state."""
        return {
            **self.constants,
            "metrics_length": metrics_length,
            "seconds": seconds,
            "streams": self.program.num_streams,
            shards.KEY: self.program.num_shards,
            "best": self.evaluations.best,
            "due": self.evaluations.due,
        }

    def _fail(self, state: PyTree, chunk: Chunk, update: int, lines: MetricLines, seconds: float) -> NoReturn:
        """Save the last finite state of a chunk that began with `state`, and raise NonFiniteError."""
        failed_step = (update + int(chunk.count)) * self.batch
        last_finite_step = failed_step - self.batch
        state = self.program.state_before_last(state, chunk)
        self._save(state, last_finite_step, lines, seconds)
        quantity = self.program.name_non_finite(state, chunk)
        raise NonFiniteError(
            f"{quantity} is not finite after step {failed_step}; the state of step {last_finite_step} was kept; "
            f"{remedy(quantity, self.config, largest_reward(chunk.metrics))}"
        )

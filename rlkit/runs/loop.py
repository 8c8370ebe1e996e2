"""The loop around the compiled chunks of a run: clock, metric lines, checkpoints, evaluations, signals, files."""

import importlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from rlkit.hosts.pool import HostError
from rlkit.hosts.processes import Interrupted
from rlkit.runs import files, memory, scores
from rlkit.runs.checkpoints import checkpoint, transfer
from rlkit.runs.config.run_config import RunConfig, load_config, parse
from rlkit.runs.metrics import Lines, require, summarize
from rlkit.runs.pictures import curves
from rlkit.runs.policy import stored, streams
from rlkit.runs.programs.host_program import HostProgram
from rlkit.runs.programs.host_program import program as make_program
from rlkit.runs.programs.jax_program import Chunk, Program
from rlkit.runs.progress import progress
from rlkit.runs.signals import Signals
from rlkit.types import ConfigError, PyTree

OnChunk = Callable[[dict[str, Any], PyTree], bool | None]


class NonFiniteError(RuntimeError):
    """A loss, an observation, a reward or a parameter became NaN or infinite. The last finite state was saved."""


class Trained(NamedTuple):
    """A run that came to its end, or was stopped."""

    run: Path
    state: PyTree  # a TrainState; leaves [S, ...] with several seeds
    evaluation: dict[str, Any] | None  # what eval.json holds; None where the run was stopped
    signal: int | None  # what stopped it, e.g. signal.SIGINT


def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    on_chunk: OnChunk | None = None,
    *,
    out: str | Path | None = None,
    init_from: str | Path | None = None,
    show: bool = True,
) -> Trained:
    """Train as a config says, in a new run directory.

    Args:
      config: a RunConfig, a flat mapping of its keys, or what `load_config` takes.
      on_chunk: called with each metric line and the state after it; what is true ends the run.
      out: the run directory; None for the first free name in ./runs.
      init_from: a run whose agent's parameters and statistics this one starts with.
      show: whether to show progress.

    Returns:
      Where the run lies, its last state and its evaluation.

    Raises:
      ConfigError: a mistake in the config, or a directory that cannot be used; nothing was written.
      NonFiniteError: with the step and the quantity; the last finite state is a checkpoint of the run.
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    elif not isinstance(config, RunConfig):
        config = parse(config)
    require(config)
    with closing(make_program(config)) as program:
        program.check()
        memory.require(program)
        taken = transfer.of(program, init_from) if init_from is not None else None
        run = files.new_run(out if out is not None else files.next_run(config.name))
        with files.locked(run):
            try:
                files.replace(run / "versions.json", json.dumps(versions(), indent=1).encode() + b"\n")
                if init_from is not None:
                    files.replace(run / files.INIT_FROM, os.fsencode(os.path.abspath(init_from)))
                files.replace(run / files.CONFIG, config.resolved().encode())
            except OSError as error:
                raise ConfigError(f"out={str(run)!r} must be writable: {error.strerror}; choose another") from None
            with Run(program, run, on_chunk, show) as session:
                return session.start(taken)


def resume(run: str | Path, on_chunk: OnChunk | None = None, *, env: str | None = None, show: bool = True) -> Trained:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped.

    An environment outside of JAX cannot be stored: there, new episodes begin. Where it is code of one's own
    (`module:Class`), `env` has to name it again, since no code is run that only a file names.

    Raises:
      ConfigError: there is no such run, no checkpoint that its config fits, or another process trains it.
    """
    path = files.open_run(run)
    files.require_writable(path, f"run={str(run)!r}")
    config = stored(path, env)
    require(config)
    with files.locked(path), closing(make_program(config, streams(path))) as program:
        if not checkpoint.steps(path) and not (path / files.METRICS).exists():
            taken = transfer.of(program, source) if (source := files.init_from(path)) else None
            with Run(program, path, on_chunk, show) as session:  # it was stopped before its first step
                return session.start(taken)
        state, step, extra = checkpoint.restore(path, program.template)
        length, seconds = extra.get("metrics_length"), extra.get("seconds")
        if not isinstance(length, int) or not isinstance(seconds, int | float) or not 0 <= length < 2**62:
            raise ConfigError(
                f"run={str(run)!r} must hold a checkpoint of a run, and step {step} is none; train it anew"
            )
        checkpoint.clean(path)
        with Run(program, path, on_chunk, show) as session:
            return session.go_on(state, step, length, seconds)


class Run:
    """A run in progress: the compiled program, the display and the files around it."""

    def __init__(self, program: Program | HostProgram, path: Path, on_chunk: OnChunk | None, show: bool):
        config = program.config
        self.program, self.path, self.config, self.on_chunk = program, path, config, on_chunk
        self.batch, self.schedule = config.steps_per_update, Schedule(config)
        self.display = progress(config.num_updates * self.batch, show=show)
        self.background, self.signals = ThreadPoolExecutor(1), Signals()

    def __enter__(self) -> "Run":
        self.display.__enter__()
        if self.program.note:
            self.display.say(self.program.note)
        return self

    def __exit__(self, *exception: Any) -> None:
        self.background.shutdown(cancel_futures=True)
        self.display.__exit__(*exception)

    def start(self, taken: transfer.Taken | None) -> Trained:
        """Train from the first step, with what was `taken` from another run."""
        with self.signals:
            started = self.background.submit(self.program.start)  # two compilations at once take as long as the longer
            _ = self.program.advance
            state = started.result()
            if taken is not None:
                state = state.replace(agent=transfer.into(state.agent, taken))
            checkpoint.save(self.path, 0, state, self._extra(0, 0.0))
            state, step = self._train(state, 0, 0, 0.0)
        return self._end(state, step)

    def go_on(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> Trained:
        """Train from environment step `step` to the end."""
        with self.signals:
            state, step = self._train(state, step, metrics_length, seconds)
        return self._end(state, step)

    def _train(self, state: PyTree, step: int, metrics_length: int, seconds: float) -> tuple[PyTree, int]:
        """The last state and its step."""
        update, stop, num_seeds, signals = step // self.batch, False, self.config.run.num_seeds, self.signals
        if update < self.config.num_updates:
            _ = self.program.advance  # compiled before the clock starts
        if signals.received is None:
            self.prepared = self.background.submit(self._prepare)
        lines = Lines(self.path, self.config, length=metrics_length, step=step)
        with closing(lines):
            self.program.stop = lambda: signals.received is not None
            while update < self.config.num_updates and not stop and signals.received is None:
                begin = time.perf_counter()
                try:
                    chunk = self.program.advance(state, np.int32(self.schedule.next_line(update) - update))
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
                line = {
                    "step": step,
                    "seconds": round(seconds, 3),
                    "steps_per_second": round(count * self.batch * num_seeds / elapsed, 1),
                    **summarize({name: np.asarray(x)[:count] for name, x in chunk.metrics.items()}, num_seeds),
                }
                if self.schedule.evaluates(update):
                    try:
                        line |= self._evaluated(self.prepared.result(), state)
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

    def _end(self, state: PyTree, step: int) -> Trained:
        """Evaluate and draw, where no signal stopped the run."""
        if self.signals.received is not None:
            self.display.say(f"stopped at step {step} and saved; go on with: rlkit resume {self.path}")
            return Trained(self.path, state, None, self.signals.received)
        evaluation = evaluate(self.program, self.prepared.result(), state, step)
        scores.save(self.path, evaluation)
        curves.draw(self.path, name=self.config.run.agent, title=self.config.run.env)
        return Trained(self.path, state, evaluation, None)

    def _evaluated(self, evaluation: Callable[[PyTree], Any], state: PyTree) -> dict[str, Any]:
        """What greedy episodes add to a metric line; nothing where a signal ends them."""
        try:
            found = scores.summary(evaluation(state), self.program.batched)
        except Interrupted:
            return {}
        return {f"eval_{name}": value for name, value in found.items()}

    def _prepare(self) -> Any:
        """What is needed at the end is made ready while the device trains."""
        compiled, run = self.program.evaluate, self.config.run
        scores.iqm_and_interval(np.zeros(run.num_seeds if self.program.batched else run.eval_episodes, np.float32))
        importlib.import_module("matplotlib.backends.backend_agg")
        return compiled

    def _save(self, state: PyTree, step: int, lines: Lines, seconds: float) -> None:
        extra = self._extra(lines.sync(), seconds)
        checkpoint.save(self.path, step, state, extra, keep=self.config.run.keep_checkpoints)

    def _extra(self, metrics_length: int, seconds: float) -> dict[str, Any]:
        """What a checkpoint holds beside the state."""
        streams = None if self.config.run.dataset is None else self.program.streams
        return {"metrics_length": metrics_length, "seconds": seconds, "streams": streams}

    def _fail(self, state: PyTree, chunk: Chunk, update: int, lines: Lines, seconds: float) -> NoReturn:
        """Save the last finite state of a chunk that began with `state`, and say what was not finite."""
        bad = update + int(chunk.count)
        state = self.program.before_last(state, chunk)
        self._save(state, (bad - 1) * self.batch, lines, seconds)
        reason = self.program.blame(state, chunk)
        raise NonFiniteError(
            f"{reason} is not finite after step {bad * self.batch}; the state of step {(bad - 1) * self.batch} was "
            "kept; a smaller learning_rate or max_grad_norm may help"
        )


class Schedule:
    """What happens after which update; everything at multiples of a metric line."""

    def __init__(self, config: RunConfig):
        line, total, batch = config.updates_per_line, config.num_updates, config.steps_per_update
        self.line, self.total = line, total
        self.eval_lines = max(1, round(every / (batch * line))) if (every := config.run.eval_every) else None
        self.save_lines = max(1, round((config.run.checkpoint_every or config.run.total_steps / 10) / (batch * line)))

    def next_line(self, update: int) -> int:
        return min((update // self.line + 1) * self.line, self.total)

    def evaluates(self, update: int) -> bool:
        return self.eval_lines is not None and update % (self.line * self.eval_lines) == 0

    def saves(self, update: int) -> bool:
        return update == self.total or update % (self.line * self.save_lines) == 0


def evaluate(
    program: Program | HostProgram, evaluation: Callable[[PyTree], Any], state: PyTree, step: int
) -> dict[str, Any]:
    """Greedy episodes of a state, and what is needed to read their numbers."""
    run = program.config.run
    return {
        "env": run.env,
        "env_kwargs": {key: scores.plain(value) for key, value in run.env_kwargs.items()},
        "wrappers": list(run.wrappers),
        "agent": run.agent,
        "step": step,
        "greedy": True,
        "seeds": program.seeds.tolist(),
        **scores.report(evaluation(state), program.batched),
    }


def versions() -> dict[str, Any]:
    """What the numbers of a run depend on besides its config."""
    found = {}
    for name in ("rlkit-jax", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    device = jax.devices()[0]
    return {
        **found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device.platform} {device.device_kind}",
        "devices": jax.device_count(),
    }

"""Training and resuming of runs."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Unpack

import jax

from rlkit.hosts.placeholder import HostEnv
from rlkit.runs import files, records, run_directory, transfer
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config import changes
from rlkit.runs.config.load import load_config
from rlkit.runs.config.own_code import OwnCode
from rlkit.runs.config.parse import parse
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.hints import on_defaults, on_settings
from rlkit.runs.metrics import require_writers
from rlkit.runs.pictures import curves
from rlkit.runs.policy import NO_EVAL_ENV, best_evaluation, dataset_streams, stored_config
from rlkit.runs.programs import same_run, shards
from rlkit.runs.programs.agreement import agreed, caught
from rlkit.runs.programs.make import make_program, require_memory
from rlkit.runs.progress import make_display
from rlkit.runs.reports.report import report
from rlkit.runs.session import NonFiniteError, OnChunk, Session, Trained
from rlkit.runs.versions import versions
from rlkit.training import processes
from rlkit.types import ConfigError

__all__ = ["NonFiniteError", "OnChunk", "Trained", "resume", "train"]


def train(
    config: RunConfig | Mapping[str, Any] | str | Path,
    on_chunk: OnChunk | None = None,
    *,
    out: str | Path | None = None,
    init_from: str | Path | None = None,
    show: bool = True,
) -> Trained:
    """Train a config in a new run directory.

    Where `jax.distributed.initialize` has joined several processes, each of them makes this call, and the first one
    writes the run.

    Args:
      config: a RunConfig, a flat mapping of its keys, or an argument of `load_config`.
      on_chunk: called with each metric line, before it is written, and the state after it. With several seeds an
        entry is the mean over them, and `line.seeds` has those of each. A dict that it returns, of a number by name (or
        one a seed), is added to the line. True ends the run, None does nothing:

            def on_chunk(line, state):
                return line["return_mean"] is not None and line["return_mean"] > 400

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
    config = agreed(caught(lambda: _validated(config)))
    same_run.require(config, init_from)
    notice = make_display(config.run.total_steps, show=show and processes.is_first())
    with closing(make_program(config)) as program:
        if config.run.env_check:
            if isinstance(program.env, HostEnv):
                notice.print(f"checking env={config.run.env!r} by a few random steps; env_check: false skips this")
            program.on_failure, program.on_progress = lambda failure: notice.print(str(failure)), notice.print
            program.check()
        require_memory(program)
        for line in (*on_defaults(config), *on_settings(program)):
            notice.print(line)
        learned = transfer.load(program, init_from) if init_from is not None else None
        with ExitStack() as stack:
            run = _of_first(lambda: _begin(config, out, init_from, stack))
            with Session(program, run, on_chunk, show, {"config": config.resolved()}) as session:
                trained = session.start(learned)
    return _with_pictures(trained, config, show)


def _validated(config: RunConfig | Mapping[str, Any] | str | Path) -> RunConfig:
    if isinstance(config, str | Path):
        config = load_config(config)
    elif not isinstance(config, RunConfig):
        config = parse(config)
    require_writers(config)
    return config


def _begin(config: RunConfig, out: str | Path | None, init_from: str | Path | None, stack: ExitStack) -> Path:
    """Make a new run's directory with the files that it starts with, locked until `stack` is closed."""
    run = run_directory.create(out if out is not None else run_directory.next_free(config.name))
    stack.enter_context(run_directory.locked(run))
    with files.writing(run):
        run_directory.begin(run)
        records.write(run / run_directory.VERSIONS, versions())
        if init_from is not None:
            files.replace(run / run_directory.INIT_FROM, os.fsencode(os.path.abspath(init_from)))
        files.replace(run / run_directory.CONFIG, config.resolved().encode())
    return run


def _of_first(make: Callable[[], Path]) -> Path:
    """The path that `make` returns in the first process, or the ConfigError that it raises there, in all processes."""
    if jax.process_count() == 1:
        return make()
    path, problem = "", ""
    if processes.is_first():
        try:
            path = str(make())
        except ConfigError as error:
            problem = str(error)
    if problem := processes.agree_on_text(problem):
        raise ConfigError(problem)
    return Path(processes.agree_on_text(path))


def resume(
    run: str | Path,
    on_chunk: OnChunk | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    show: bool = True,
    **own_code: Unpack[OwnCode],
) -> Trained:
    """Continue a run from its newest whole checkpoint, as if it had never stopped, or with some of its keys changed.

    A greater `total_steps` makes a run longer, also one that has ended; schedules that end with the run then end later.
    The keys of the agent's `Hyper` change from the checkpoint on, except those that set a start value alone. Nothing is
    rewritten where no step follows. What changed at which step is in the run's
    changes.json. Keys that shape the program cannot change. All this holds for an edited config.yaml as well.

    The state of an environment outside of JAX cannot be stored: there, new episodes begin.

    Args:
      run: a run directory.
      on_chunk, show: as for `train`.
      overrides: keys that replace those of the run's config.
      own_code: `agent`, `env`, `wrappers` and `network` of the run again, where they are the user's own code, as
        `module:name` or as objects: no code runs because a file names it.

    Raises:
      ConfigError: there is no such run, no checkpoint that fits its config, a key has changed that must not, or without
        an effect as the run has ended, or another process trains the run.
      NonFiniteError, HostError: as for `train`.
    """
    path, config = agreed(caught(lambda: _stored(run, overrides, own_code)))
    same_run.require(config)
    return _with_pictures(_resume(path, config, on_chunk, show), config, show)


def _stored(run: str | Path, overrides: Mapping[str, Any] | None, own_code: OwnCode) -> tuple[Path, RunConfig]:
    """The directory of a run that can go on, and its config with the overrides."""
    path = run_directory.existing(run)
    files.require_writable(path, f"run={str(run)!r}")
    reached, total = checkpoint.steps(path)[-1:], (overrides or {}).get("total_steps")
    try:
        config = stored_config(path, overrides, own_code)
    except ConfigError:
        if reached and isinstance(total, int | float) and total < reached[0]:  # whatever else the number breaks
            changes.refuse_length(int(total), reached[0])
        raise
    require_writers(config)
    return path, config


def _lock(path: Path, stack: ExitStack) -> Path:
    """Lock a run until `stack` is closed."""
    stack.enter_context(run_directory.locked(path))
    return path


def _resume(path: Path, config: RunConfig, on_chunk: OnChunk | None, show: bool) -> Trained:
    """Continue a run with a config."""
    with ExitStack() as stack:
        _of_first(lambda: _lock(path, stack))
        checkpoints = checkpoint.Reader(path)
        changes.find(checkpoints.extra(), config, path)  # before a program is made that could not read the checkpoint
        with closing(make_program(config, dataset_streams(checkpoints.extra()))) as program:
            if not checkpoint.steps(path) and not (path / run_directory.METRICS).exists():
                source = run_directory.read_init_from(path)
                learned = transfer.load(program, source) if source else None
                if processes.is_first():
                    files.replace(path / run_directory.CONFIG, config.resolved().encode())
                with Session(program, path, on_chunk, show, {"config": config.resolved()}) as session:
                    return session.start(learned)  # it was stopped before its first step
            state, step, extra = shards.restore(checkpoints, program)
            length, seconds = extra.get("metrics_length"), extra.get("seconds")
            if not isinstance(length, int) or not isinstance(seconds, int | float) or not 0 <= length < 2**62:
                raise ConfigError(
                    f"run={str(path)!r} must hold a checkpoint of a run, and step {step} is none; train it anew"
                )
            if processes.agree_on_text(str(step)) != str(step):
                raise ConfigError(
                    f"run={str(path)!r} must be the same folder for every process, and this one has another newest "
                    f"checkpoint, of step {step}; put it on a disk that all share"
                )
            changed = changes.find(extra, config, path, program.env.action_space(program.params))
            state = changes.apply(state, config, changed, step)
            changed = changes.effective(changed, config, step, path)
            constants = {"config": config.resolved(), "changes": changes.history(extra, changed, step)}
            processes.agree_on_text("")  # all have read the files before the first process changes them
            if processes.is_first():
                checkpoint.clean(path)
            if changed and processes.is_first():
                records.write(path / changes.FILE, constants["changes"])
                files.replace(path / run_directory.CONFIG, constants["config"].encode())
            best = None if changed.now.keys() & NO_EVAL_ENV.keys() else best_evaluation(extra)  # of another environment
            due = extra.get("due") is True
            with Session(program, path, on_chunk, show, constants, best=best, due=due) as session:
                for line in changed.lines(step):
                    session.display.print(line)
                return session.resume(state, step, length, seconds)


def _with_pictures(trained: Trained, config: RunConfig, show: bool) -> Trained:
    """Draw the curve of a run that has ended, and its report if the config asks for one. Returns the result."""
    if trained.signal is not None or not processes.is_first():
        return trained
    notice = make_display(config.run.total_steps, show=show)
    try:  # the run itself is whole
        reason = curves.draw(trained.run, name=config.run.agent, title=config.run.env)
    except ConfigError as error:  # such as a full disk
        reason = str(error)
    if reason is not None:
        notice.print(f"no curve.png: {reason}")
    if config.run.report:
        try:
            report(trained.run)
        except ConfigError as error:
            notice.print(f"no report.html: {error}")
    return trained

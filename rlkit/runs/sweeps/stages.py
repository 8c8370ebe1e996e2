"""Stages of a sweep: the trials that run side by side, as few programs on all devices."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from rlkit import hosts
from rlkit.runs import records
from rlkit.runs.config.errors import show_value
from rlkit.runs.config.run_config import RunConfig
from rlkit.runs.devices import memory
from rlkit.runs.metrics import Line
from rlkit.runs.programs.jax_program import JaxProgram
from rlkit.runs.programs.make import make_program
from rlkit.runs.programs.state import Runs
from rlkit.runs.signals import Signals
from rlkit.runs.sweeps import blocks
from rlkit.runs.sweeps.blocks import Outcome, Run
from rlkit.runs.sweeps.config import Sweep
from rlkit.runs.sweeps.trials import Trial, group_key, rung_end
from rlkit.types import ConfigError

_SHARE_OF_MEMORY = 0.5  # the rest is for the temporaries of an update

OnStep = Callable[[int, Line | None, Sequence[Run]], None]


class Stages:
    """Runs stages in a folder, and keeps the programs that they have made.

    Args:
      sweep: a validated sweep.
      folder: of the sweep.
      on_step: called with the environment steps of all runs that were done since the last call, a metric line (None for
        steps that were done before a restart), and the runs of that line.
      on_block: called with the outcomes of each block that has ended.
    """

    def __init__(self, sweep: Sweep, folder: Path, on_step: OnStep, on_block: Callable[[list[Outcome]], None]):
        self.sweep, self.folder, self.on_step, self.on_block = sweep, folder, on_step, on_block
        self._programs: dict[tuple[Any, ...], JaxProgram] = {}
        self._background = ThreadPoolExecutor(1, "rlkit-compile")
        self._prepared: Future | None = None  # the compilation of the next rung's program
        self.signals = Signals()  # those that come while no block runs, once the caller has entered this context

    @property
    def num_programs(self) -> int:
        """Programs that were made so far."""
        return len(self._programs)

    def run(
        self, name: str, trials: Sequence[Trial], share: float = 1.0, earlier: Mapping[tuple[int, int], Outcome] = {}
    ) -> None:
        """Run trials to a share of their steps.

        Args:
          name: of the stage, the stem of its blocks' folders.
          trials: that run.
          share: of each run, at whose end they stop.
          earlier: what each trial and seed has reached, where they go on.

        Raises:
          blocks.Stopped: a signal came.
        """
        for number, (group, size) in enumerate(self._groups(trials, self.folder / "blocks" / f"{name}.json")):
            for start in range(0, len(group), size):
                path = self.folder / "blocks" / f"{name}-{number:03d}-{start // size:03d}"
                self._stop_if_asked()
                self.on_block(self._run_block(path, group[start : start + size], size, share, earlier))

    def prepare(self, trials: Sequence[Trial], count: int, share: float) -> None:
        """Compile the program of the next rung while this one runs, where it is known before it is known who goes on.

        Args:
          trials: that run now.
          count: number of them that will go on.
          share: of each run, at whose end they will stop.
        """
        groups = self._groups(trials[:count])
        if len({group_key(trial.config) for trial in trials}) > 1 or hosts.is_host(trials[0].config.run.env):
            return
        ((runs, size),) = groups
        config, stacked = blocks.block_config(runs[0], size, rung_end(trials[0], share)), blocks.stack(runs, size)
        if _key(config, stacked) not in self._programs:
            program = self._program(config, stacked)
            self._prepared = self._background.submit(lambda: (program.compile(), program.compile_evaluation()))

    def close(self) -> None:
        """Wait for a compilation in the background."""
        self._background.shutdown(cancel_futures=True)

    def _run_block(
        self, path: Path, runs: list[Run], size: int, share: float, earlier: Mapping[tuple[int, int], Outcome]
    ) -> list[Outcome]:
        """The outcomes of a block, which is run unless it has ended before."""
        before = [earlier.get((run.trial.number, run.seed)) for run in runs]
        known = [outcome for outcome in before if outcome is not None]
        start, end = (known[0].step if known else 0), rung_end(runs[0].trial, share)
        if (done := blocks.read(path, runs, size, before)) is not None:
            self.on_step((end * runs[0].trial.config.steps_per_update - start) * len(runs), None, runs)
            return done
        at = start

        def on_line(line: Line) -> None:
            nonlocal at
            self.on_step((line["step"] - at) * len(runs), line, runs)
            at = line["step"]

        config, stacked = blocks.block_config(runs[0], size, end), blocks.stack(runs, size)
        if self._prepared is not None:
            self._prepared.result()
            self._stop_if_asked()
        shared = not hosts.is_host(config.run.env)  # by later blocks
        program = self._program(config, stacked) if shared else blocks.make(config, stacked)
        with nullcontext() if shared else closing(program):
            first = partial(blocks.gather, known, program, size) if known else None
            blocks.execute(program, path, runs, first, start, on_line)
        result = blocks.read(path, runs, size, before)
        assert result is not None
        return result

    def _stop_if_asked(self) -> None:
        """Raise Stopped where a signal has come."""
        if self.signals.received is not None:
            raise blocks.Stopped(self.signals.received)

    def _program(self, config: RunConfig, runs: Runs) -> JaxProgram:
        """The program of a block, the same one for all blocks of a group that end at the same step."""
        key = _key(config, runs)
        if key not in self._programs:
            program = blocks.make(config, runs)
            assert isinstance(program, JaxProgram)
            self._programs[key] = program
        program = self._programs[key]
        program.runs = runs
        return program

    def _groups(self, trials: Sequence[Trial], path: Path | None = None) -> list[tuple[list[Run], int]]:
        """The runs of trials that are one program, and the size of the blocks that they are divided into; of each.

        The sizes are written to the file `path` and read from it when the sweep goes on, since they depend on the
        memory and the devices.
        """
        by_key: dict[str, list[Run]] = {}
        for trial in trials:
            first = trial.config.run.seed
            seeds = range(first, first + self.sweep.settings.seeds_per_trial)
            by_key.setdefault(group_key(trial.config), []).extend(Run(trial, seed) for seed in seeds)
        if path is not None and path.is_file():
            sizes = records.read(path, list[PositiveInt], blocks.AS_WRITTEN, blocks.PUT_BACK)
            if len(sizes) != len(by_key):
                raise ConfigError(f"{path} {blocks.CHANGED}")
        else:
            sizes = [self._block_size(runs) for runs in by_key.values()]
            if path is not None:
                path.parent.mkdir(exist_ok=True)
                records.write(path, sizes)
        return list(zip(by_key.values(), sizes, strict=True))

    def _block_size(self, runs: list[Run]) -> int:
        """As many runs as memory holds, in blocks of equal sizes."""
        if hosts.is_host(runs[0].trial.config.run.env):
            return 1
        most = min(self.sweep.settings.runs_at_once or len(runs), len(runs))
        with closing(blocks.make(blocks.block_config(runs[0], most), blocks.stack(runs, most))) as program:
            limit = memory.available(program.num_devices)
            if limit is not None:
                each = program.num_bytes / most
                most = max(1, min(most, int(_SHARE_OF_MEMORY * limit / each)))
        number = math.ceil(len(runs) / most)
        return math.ceil(len(runs) / number)


def _key(config: RunConfig, runs: Runs) -> tuple[Any, ...]:
    """A key that blocks with the same program share: all but the seeds and the Hyper of their runs."""
    return (group_key(config), *runs.seeds.shape)


def check(trials: Sequence[Trial]) -> None:
    """Make the program of each group, without compiling it, and step the first one's environment a little.

    Raises:
      ConfigError: a program cannot be made, the environment breaks its contract, or a key has no effect in any trial.
    """
    spaces, unused = {}, []
    for trial in trials:
        if (group := group_key(trial.config)) not in spaces:
            with closing(make_program(trial.config)) as program:
                if not spaces and trial.config.run.env_check:
                    program.check()
                env, params = program.env, program.params
                spaces[group] = env.action_space(params), env.observation_space(params)
        unused.append(trial.config.unused(*spaces[group]))
    for key, value in (swept := trials[0].values).items():
        reasons = [fields[key] for fields in unused if key in fields]
        if len(reasons) == len(trials) and not any(reason.partition("=")[0] in swept for reason in reasons):
            raise ConfigError(f"{key}={show_value(value)} changes nothing in any trial, as {reasons[0]}; leave it out")

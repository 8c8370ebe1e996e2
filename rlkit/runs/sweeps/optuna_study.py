"""Trials chosen by Optuna: asked for in batches, run as one program, and told their scores.

Several workers may share a study in a storage, each with a name that the study lists, and draw different trials. Each
marks its trials as alive while it runs them; those of a worker that died are failed and asked for again.
"""

import contextlib
import math
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.runs import records, versions
from rlkit.runs.config import strict_yaml
from rlkit.runs.programs.make import make_program
from rlkit.runs.sweeps.blocks import AS_WRITTEN, DELETE, PUT_BACK
from rlkit.runs.sweeps.config import Sweep, SweepSettings
from rlkit.runs.sweeps.results import Result
from rlkit.runs.sweeps.space import rounded
from rlkit.runs.sweeps.trials import Trial, group_key
from rlkit.types import ConfigError

_HEARTBEAT, _GRACE = 30, 120  # seconds
_Asked = list[tuple[int, dict[str, Any]]]  # the study's number and the values of each trial of a batch
_WORKERS = "rlkit worker "  # begins the study's attribute of each worker


def require() -> Any:
    """Return the module optuna. Raises ConfigError where it is not installed."""
    optuna = versions.require("optuna", "sampler=optuna", "sweep")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # heartbeats, since 2021
    warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")  # Study.alive makes them
    return optuna


def open_storage(url: str, where: str | None = None) -> Any:
    """Open Optuna's storage. Raises ConfigError, which begins with `where`, where the database cannot be used."""
    optuna = require()
    from sqlalchemy.pool import NullPool  # pyright: ignore[reportMissingImports]

    retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    with _refusing(where or f"storage={url!r}"):
        return optuna.storages.RDBStorage(
            url,
            engine_kwargs={"poolclass": NullPool},  # a connection is closed after its use, and after an error
            heartbeat_interval=_HEARTBEAT,
            grace_period=_GRACE,
            heartbeat_stale_trial_callback=retry,
        )


@contextlib.contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Raise ConfigError, which begins with `where`, for an error of a database driver, whose class is not known."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        text = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{where} must be a database that can be used: {text}") from None


def batch_size(settings: SweepSettings) -> int:
    """Return the number of trials of a batch: by default few enough that Optuna learns from seven earlier batches."""
    return settings.batch or min(16, math.ceil(settings.trials / 8))


def num_random(settings: SweepSettings) -> int:
    """Return the number of scores from which on Optuna learns: its own 10, or half of the trials if those are fewer."""
    return min(10, math.ceil(settings.trials / 2))


class Study:
    """A study with the batches that this folder has asked for, each written down before it runs."""

    def __init__(self, sweep: Sweep, folder: Path):
        optuna = require()
        self.optuna, self.sweep, self.folder = optuna, sweep, folder
        settings = sweep.settings
        file = folder.resolve() / "study.db"
        where = f"storage={settings.storage!r}" if settings.storage else str(file)
        written, self.worker = self._written(), self._name()
        if settings.storage is None and written and not file.is_file():
            raise ConfigError(f"{where} must hold the study of this sweep, and is missing; {PUT_BACK}")
        with _refusing(where):
            self.storage = open_storage(settings.storage or f"sqlite:///{file}", where)
            self.study = optuna.create_study(
                storage=self.storage, study_name=settings.study, direction="maximize", load_if_exists=True
            )
            self.study.set_user_attr(_WORKERS + self.worker.hex, True)
            workers = [key for key in self.study.user_attrs if key.startswith(_WORKERS)]
            lost = written - {trial.number for trial in self.study.get_trials(deepcopy=False)}
        if lost:
            raise ConfigError(f"{where} must hold all trials of this sweep, and lacks {min(lost)}; {PUT_BACK}")
        # A worker that has the study to itself draws the same trials in any folder.
        self.entropy = 0 if len(workers) == 1 else self.worker.int

    def batch(self, number: int, size: int) -> _Asked:
        """Return the study's number and the values of each trial of a batch, the same ones after a restart."""
        path = self.folder / "batches" / f"{number:03d}.json"
        if path.is_file():
            return records.read(path, _Asked, AS_WRITTEN, PUT_BACK)
        path.parent.mkdir(exist_ok=True)
        self._fail_lost()
        # A sampler of its own for each batch: after a restart it draws what it would have drawn.
        seeds = np.random.SeedSequence([self.sweep.settings.sampler_seed, number, self.entropy])
        self.study.sampler = self.optuna.samplers.TPESampler(
            seed=int(seeds.generate_state(1)[0]), n_startup_trials=num_random(self.sweep.settings), constant_liar=True
        )
        asked = []
        for _ in range(size):
            trial = self.study.ask()
            trial.set_user_attr("worker", self.worker.hex)
            asked.append((trial.number, self._values(trial)))
        records.write(path, asked)
        return asked

    def tell(self, known: int, score: float | None) -> None:
        """Report the score of a trial; None for one that diverged."""
        from optuna.trial import TrialState  # pyright: ignore[reportMissingImports]

        with contextlib.suppress(self.optuna.exceptions.UpdateFinishedTrialError):
            state = TrialState.FAIL if score is None else None
            self.study.tell(known, score, state=state, skip_if_finished=True)

    @contextlib.contextmanager
    def alive(self, numbers: list[int]) -> Iterator[None]:
        """Mark trials as alive while they run."""
        stop = threading.Event()
        by_number = {trial.number: trial._trial_id for trial in self.study.get_trials(deepcopy=False)}

        def beat() -> None:
            while True:
                for number in numbers:
                    with contextlib.suppress(Exception):  # a database that is away for a moment
                        self.storage.record_heartbeat(by_number[number])
                if stop.wait(_HEARTBEAT):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _name(self) -> uuid.UUID:
        """The name of this folder's worker, which is drawn once."""
        path = self.folder / "worker.json"
        if not path.is_file():
            records.write(path, str(uuid.uuid4()))
        return records.read(path, uuid.UUID, AS_WRITTEN, DELETE)

    def _fail_lost(self) -> None:
        """Fail trials of workers that died, so that they are asked for again, and those of this folder in no batch."""
        from optuna.trial import TrialState  # pyright: ignore[reportMissingImports]

        self.optuna.storages.fail_stale_trials(self.study)
        written = self._written()
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get("worker") == self.worker.hex and trial.number not in written:
                self.study.tell(trial.number, state=TrialState.FAIL)

    def _written(self) -> set[int]:
        """The study's numbers of all trials that this folder has asked for."""
        paths = (self.folder / "batches").glob("*.json")
        return {known for path in paths for known, _ in records.read(path, _Asked, AS_WRITTEN, PUT_BACK)}

    def _values(self, trial: Any) -> dict[str, Any]:
        """The values that a trial suggests for each swept key."""
        values: dict[str, Any] = {}
        for key, dimension in self.sweep.dimensions.items():
            if dimension.kind == "values":
                words = [strict_yaml.dump({"": value}) for value in dimension.values]  # lists are no categories
                values[key] = dimension.values[words.index(trial.suggest_categorical(key, words))]
            elif dimension.kind == "integers":
                values[key] = trial.suggest_int(key, int(dimension.low), int(dimension.high))
            else:
                log = dimension.kind == "log_uniform"
                values[key] = rounded(trial.suggest_float(key, dimension.low, dimension.high, log=log))
        return values


def batches(run: Any) -> Iterator[None]:
    """Run the trials of a sweep in batches; yields after each.

    Args:
      run: the sweep in progress, whose trials and outcomes are filled in.
    """
    sweep, study = run.sweep, Study(run.sweep, run.folder)
    size, first = batch_size(sweep.settings), num_random(sweep.settings)
    run.display.print(
        f"optuna: {sweep.settings.trials} trial(s) in batches of {size}; it learns from {first} scores on, until then "
        "values are random"
    )
    number, mistake = 0, None
    programs: set[str] = set()  # that can be made
    while len(run.trials) < sweep.settings.trials:
        asked = study.batch(number, min(size, sweep.settings.trials - len(run.trials)))
        batch = []
        for place, (_, values) in enumerate(asked):
            try:
                config = sweep.trial_config(values)
                if (program := group_key(config)) not in programs:
                    make_program(config).close()
                    programs.add(program)
            except ConfigError as error:  # each value is valid, but not with the others
                config, mistake = None, error
                run.display.print(f"trial {len(run.trials) + place} is invalid: {error}")
            batch.append(Trial(len(run.trials) + place, values, config))
        run.trials += batch
        run.alive |= {trial.number for trial in batch}
        with study.alive([known for known, _ in asked]):
            run.stages.run(f"batch-{number:03d}", [trial for trial in batch if trial.config is not None])
        for (known, _), trial in zip(asked, batch, strict=True):
            result: Result = run.result(trial)
            study.tell(known, result.score)
        number += 1
        yield
    if mistake is not None and all(trial.config is None for trial in run.trials):
        raise mistake

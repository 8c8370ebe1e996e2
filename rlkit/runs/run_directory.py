"""Run directories: the names of their files, their creation, their lock."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlkit.runs import files
from rlkit.types import ConfigError

CONFIG, METRICS, CHECKPOINTS = "config.yaml", "metrics.jsonl", "checkpoints"
EVALUATION, SWEEP = "eval.json", "sweep.yaml"
VERSIONS = "versions.json"
# A line for each failure of an environment outside of JAX: `step`, of the last metric line, and the fields of
# `hosts.failure.Failure`. It keeps the failures after the step that a run is resumed from, as they have happened too.
FAULTS = "env_faults.jsonl"
INIT_FROM, LOCK = "init_from", ".lock"
_STARTED = (VERSIONS, INIT_FROM, "resolved.yaml", "base.yaml")  # written before the config, base.yaml last
_LOCK_SECONDS = 0.1  # seconds for which a lock is tried, as `is_locked` of another process may share it for a moment


def create(out: str | Path) -> Path:
    """Create a run directory, and the folders above it. One that a killed start has left is taken.

    Raises:
      ConfigError: its name is not a plain one, it exists and is not an empty directory, or it cannot be written.
    """
    path = Path(out)
    files.require_plain_name(path, f"out={str(out)!r}", "runs/first")
    if path.is_symlink():
        raise ConfigError(f"out={str(out)!r} must not be a symlink; give the directory it points to")
    try:
        if path.exists() and not (path.is_dir() and _is_only_started(path)):
            raise ConfigError(f"out={str(out)!r} must not exist yet or be empty; choose another name")
        path.mkdir(parents=True, exist_ok=True)
        files.sync(path.parent)
        if not (path / CHECKPOINTS).is_dir():
            files.make_directory(path / CHECKPOINTS)
    except OSError as error:
        raise ConfigError(f"out={str(out)!r} must be a writable directory: {error.strerror}; choose another") from None
    return path


def _is_only_started(path: Path) -> bool:
    """True where a directory is empty, or holds nothing but what a start that was killed before its config has left."""
    names = {entry.name for entry in path.iterdir()}
    if "base.yaml" in names and "resolved.yaml" not in names:  # a file of the user's
        return False
    for name in names - {LOCK}:
        entry = path / name
        if name == CHECKPOINTS and entry.is_dir() and not entry.is_symlink():
            if any(entry.iterdir()):
                return False
        elif not (_is_left(name) and entry.is_file() and not entry.is_symlink()):
            return False
    return True


def _is_left(name: str) -> bool:
    """True for the name of a file that a start writes before the config, or of an unfinished one."""
    return name.removeprefix(files.TEMPORARY) in (*_STARTED, *((CONFIG, SWEEP) if name[0] == "." else ()))


def begin(run: Path) -> None:
    """Delete what an earlier start has left in a new run directory, which this process has locked.

    Raises:
      ConfigError: another process has begun a run or a sweep there since `create`.
    """
    if not _is_only_started(run):
        raise ConfigError(f"out={str(run)!r} must not exist yet or be empty; choose another name")
    for entry in list(run.iterdir()):
        if _is_left(entry.name):
            with files.operation("unlink", entry):
                entry.unlink()


def next_free(stem: str, folder: str | Path = "runs") -> Path:
    """Return the first of folder/stem, folder/stem-2, folder/stem-3 ... that does not exist."""
    stem = re.sub(r"[^\w.-]+", "-", stem).strip("-._")[:80] or "run"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, 1_000_000))
    return next(path for name in names if not os.path.lexists(path := Path(folder) / name))


def existing(run: str | Path) -> Path:
    """Return the path of an existing run directory; where that is a symlink, the directory that it points to.

    Raises:
      ConfigError: it does not exist, or holds no resolved config.
    """
    path = Path(run)
    if path.is_symlink():
        try:
            path = path.resolve()
        except (OSError, RuntimeError):
            raise ConfigError(f"run={str(run)!r} must point to a run directory, and it is a loop of symlinks") from None
    if not path.is_dir():
        raise ConfigError(f"run={str(run)!r} must be a run directory, and there is none; {_other_runs(path)}")
    if not (path / CONFIG).is_file() or (path / CONFIG).is_symlink():
        raise ConfigError(f"run={str(run)!r} must hold a {CONFIG}, and it does not; {_other_runs(path)}")
    return path


def _other_runs(path: Path) -> str:
    """A remedy that names the runs in the folder, or else beside it or in ./runs."""
    if (path / SWEEP).is_file():
        return "it is a sweep, which `rlkit report` shows; `rlkit train` makes a run of its best.yaml"
    for folder in (path, path.parent, Path("runs")):
        if names := sorted(str(config.parent) for config in folder.glob(f"*/{CONFIG}")):
            return f"there is {', '.join(names[:5])}"
    return "`rlkit train` makes one"


def read_init_from(run: Path) -> Path | None:
    """Return the run that a run starts from, None where there is none. Raises ConfigError for an unreadable file."""
    path = run / INIT_FROM
    try:
        return Path(os.fsdecode(files.read(path, 1 << 14)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} must be a readable file: {error.strerror}; train the run anew") from None


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Exclude other processes from writing to a run directory; the system drops the lock when this process dies.

    Where the file system has no locks, nobody is excluded. Workers are new interpreters and inherit no
    descriptor. The lock file is deleted before its descriptor is closed, so that a fork of this process, which has
    that descriptor too, does not block the next owner.

    Raises:
      ConfigError: another process trains the run, or the lock file cannot be opened.
    """
    path = run / LOCK
    while True:
        try:
            with files.operation("open", path):
                descriptor = files.open_regular(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ConfigError(
                f"run={str(run)!r} must have a writable {LOCK}: {error.strerror}; check its owner and the disk"
            ) from None
        deadline = time.monotonic() + _LOCK_SECONDS
        while not (free := _flock(descriptor, exclusive=True)) and time.monotonic() < deadline:
            time.sleep(_LOCK_SECONDS / 20)
        if not free:
            os.close(descriptor)
            raise ConfigError(
                f"run={str(run)!r} must not be trained twice, and another process trains it; wait for it or stop it"
            ) from None
        if _is_same_file(path, descriptor):  # and not deleted by its previous owner since it was opened
            break
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_same_file(path, descriptor):
                path.unlink()
        os.close(descriptor)


def is_locked(run: Path) -> bool:
    """Return True where a process trains the run, as far as the system has locks, also where it may only be read.

    The lock is shared for a moment to find that out.
    """
    try:
        descriptor = files.open_regular(run / LOCK, os.O_RDONLY)
    except OSError:
        return False
    free = _flock(descriptor, exclusive=False)
    os.close(descriptor)
    return not free


def _flock(descriptor: int, *, exclusive: bool) -> bool:
    """Lock an open file, where its file system has locks. False where another process holds the lock."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _is_same_file(path: Path, descriptor: int) -> bool:
    """True where `path` is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False

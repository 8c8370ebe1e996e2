"""The one door through which run directories are changed and read.

Every operation that changes the disk announces itself to `before_operation` first, so that a test can fail or kill the
process before any one of them. A file or a checkpoint appears under its name only once it is complete and on the disk.
"""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlkit.types import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CONFIG, METRICS, CHECKPOINTS, TEMPORARY = "config.yaml", "metrics.jsonl", "checkpoints", ".tmp-"
INIT_FROM, LOCK = "init_from", ".lock"


def before_operation(operation: str, path: Path) -> None:
    """Called before each change of the disk; a test puts a fault in its place."""


@contextmanager
def _operation(name: str, path: Path) -> Iterator[None]:
    """One change of the disk. An OSError leaves with the path in it, which write() alone would not name."""
    try:
        before_operation(name, path)
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def require_writable(folder: Path, setting: str) -> None:
    """Raise a ConfigError that begins with `setting` where no file can be made in a folder; before any work is done."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"{setting} must be in a folder that can be written to: {error.strerror}; choose another"
        ) from None


def make_directory(path: Path) -> None:
    """Create one directory, which must not exist, and make its name durable."""
    with _operation("mkdir", path):
        path.mkdir()
    sync(path.parent)


def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a new file and bring it to the disk. Raises FileExistsError where there is one."""
    with _operation("open", path):
        file = path.open("xb", buffering=0)
    with file:
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                with _operation("write", path):
                    view = view[file.write(view) :]
        with _operation("fsync", path):
            os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, over an older one if there is one."""
    temporary = path.with_name(TEMPORARY + path.name)
    temporary.unlink(missing_ok=True)
    try:
        write(temporary, [data])
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rename(source: Path, target: Path) -> None:
    """Rename atomically, and make the new name durable."""
    with _operation("rename", target):
        os.replace(source, target)
    sync(target.parent)


def sync(directory: Path) -> None:
    """Bring a directory's names to the disk."""
    with _operation("fsync", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append(path: Path, data: bytes, *, durable: bool = False) -> int:
    """Add to the end of a file, in one write; returns its length after."""
    with _operation("append", path), os.fdopen(_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb", 0) as file:
        if data:
            file.write(data)
        if durable:
            os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def cut(path: Path, length: int) -> None:
    """Shorten a file to `length` bytes, or create it empty."""
    with _operation("truncate", path), os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT), "wb", 0) as file:
        if os.fstat(file.fileno()).st_size > length:
            file.truncate(length)
            os.fsync(file.fileno())


def remove(directory: Path) -> None:
    """Delete a directory and what is in it; a symlink in it is deleted, not followed."""
    with _operation("remove", directory):
        shutil.rmtree(directory)


def read(path: Path, limit: int) -> bytes:
    """A regular file of at most `limit` bytes, whole. Raises OSError for a symlink, and where it is longer."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(27, f"longer than {limit} bytes", str(path))
    return data


def digest(path: Path) -> tuple[int, str]:
    """The length and SHA-256 of a regular file."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb", 0) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def read_into(path: Path, buffer: memoryview) -> bool:
    """Fill `buffer` from a regular file; whether the file has exactly its length."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb", 0) as file:
        if os.fstat(file.fileno()).st_size != len(buffer):
            return False
        while len(buffer) and (count := file.readinto(buffer)):
            buffer = buffer[count:]
    return not len(buffer)


def _open(path: Path, flags: int) -> int:
    """A descriptor of a regular file that is no symlink. It does not block on a named pipe."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file", str(path))
    return descriptor


def new_run(out: str | Path) -> Path:
    """Create a run directory, and the folders above it.

    Raises:
      ConfigError: its name is not a plain one, it exists and is not an empty directory, or it cannot be written.
    """
    path = Path(out)
    if not NAME.fullmatch(path.name):
        raise ConfigError(f"out={str(out)!r} must end in a name of letters, digits, . _ and -; try runs/first")
    if path.is_symlink():
        raise ConfigError(f"out={str(out)!r} must not be a symlink; give the directory it points to")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"out={str(out)!r} must not exist yet or be empty; choose another name")
        path.mkdir(parents=True, exist_ok=True)
        sync(path.parent)
        make_directory(path / CHECKPOINTS)
    except OSError as error:
        raise ConfigError(f"out={str(out)!r} must be a writable directory: {error.strerror}; choose another") from None
    return path


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Keep other processes from writing to a run directory; the system lets go of it when this process dies.

    Where the platform or the file system has no locks, nothing is kept. Workers are new interpreters, which inherit no
    descriptor; the lock's file goes before its descriptor, so that a fork of ours keeps nobody out of the next one.

    Raises:
      ConfigError: another process trains the run, or the lock's file cannot be opened.
    """
    path = run / LOCK
    while True:
        try:
            with _operation("open", path):
                descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise ConfigError(
                f"run={str(run)!r} must have a {LOCK} that can be written: {error.strerror}; see to its owner and disk"
            ) from None
        try:
            _flock(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"run={str(run)!r} must not be trained twice, and another process trains it; wait for it or stop it"
            ) from None
        if _is_at(path, descriptor):  # and not deleted by who held it before
            break
        os.close(descriptor)
    try:
        yield
    finally:
        with suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()
        os.close(descriptor)


def _flock(descriptor: int) -> None:
    """Lock an open file, where that can be done. Raises BlockingIOError where another has."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        pass


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one that has the name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def init_from(run: Path) -> Path | None:
    """The run that a run was told to start from. Raises ConfigError where that cannot be read."""
    path = run / INIT_FROM
    try:
        return Path(os.fsdecode(read(path, 1 << 14)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} must be a readable file: {error.strerror}; train the run anew") from None


def next_run(stem: str, folder: str | Path = "runs") -> Path:
    """The first of folder/stem, folder/stem-2, folder/stem-3 ... that does not exist."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:80] or "run"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, 1_000_000))
    return next(path for name in names if not os.path.lexists(path := Path(folder) / name))


def open_run(run: str | Path) -> Path:
    """An existing run directory.

    Raises:
      ConfigError: it does not exist, is a symlink, or holds no resolved config.
    """
    path = Path(run)
    if path.is_symlink():
        raise ConfigError(f"run={str(run)!r} must not be a symlink; give the directory it points to")
    if not path.is_dir():
        raise ConfigError(f"run={str(run)!r} must be a run directory, and there is none; {_others(path)}")
    if not (path / CONFIG).is_file() or (path / CONFIG).is_symlink():
        raise ConfigError(f"run={str(run)!r} must hold a {CONFIG}, and it does not; {_others(path)}")
    return path


def _others(path: Path) -> str:
    """The remedy: which runs there are beside it."""
    folder = path.parent if path.parent.is_dir() else Path("runs")
    names = sorted(str(found.parent) for found in folder.glob(f"*/{CONFIG}"))
    return f"there is {', '.join(names[:5])}" if names else "`rlkit train` makes one"

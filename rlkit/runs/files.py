"""File operations: all reading and writing of run directories, checkpoints and datasets goes through this module.

`before_operation` is called before each operation that changes the disk, so that a test can fail or kill the process
there. A file or a checkpoint appears under its name only when it is complete and on the disk.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from rlkit.types import ConfigError

NAME = re.compile(r"[^\W_][\w.-]{0,99}")  # letters and digits of any script
TEMPORARY = ".tmp-"  # prefix of what is not complete yet
_BLOCK = 1 << 20  # bytes that are read at once where they are hashed or compared


def before_operation(operation: str, path: Path) -> None:
    """Do nothing. It is called before each change of the disk, so that a test can put a fault in its place."""


@contextmanager
def operation(name: str, path: Path) -> Iterator[None]:
    """Run one change of the disk. An OSError is raised again with the path, which write() alone would not name."""
    try:
        before_operation(name, path)
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def require_writable(folder: Path, setting: str) -> None:
    """Raise a ConfigError that begins with `setting` unless files can be created in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"{setting} must be in a writable folder: {error.strerror}; choose another") from None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Raise a ConfigError on `out` for an OSError in the block, such as a full disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"out={str(out)!r} must be writable: {error.strerror}; choose another") from None


def require_plain_name(path: Path, setting: str, example: str) -> None:
    """Raise a ConfigError that begins with `setting` unless a path ends in a plain name, such as `example`."""
    name = path.name
    if NAME.fullmatch(name):
        return
    foreign = re.search(r"[^\w.-]", name)
    found = f"it has {foreign[0]!r}" if foreign else f"it begins with {name[:1]!r}"
    found = f"it has {len(name)} characters" if len(name) > 100 and not foreign else found
    raise ConfigError(
        f"{setting} must end in a name of at most 100 letters, digits, . _ and -, the first a letter or digit, and "
        f"{found}; try {example}"
    )


def make_directory(path: Path, *, durable: bool = True) -> None:
    """Create one directory, and flush its name to the disk where `durable`.

    Raises:
      FileExistsError: there is one.
    """
    with operation("mkdir", path):
        path.mkdir()
    if durable:
        sync(path.parent)


def write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a new file and flush it to the disk. Raises FileExistsError where there is one."""
    write_all({path: parts})


def write_all(contents: Mapping[Path, Iterable[bytes | memoryview]]) -> None:
    """Write new files, then flush all of them to the disk, which is faster than one after another.

    Raises:
      FileExistsError: there is one of them.
    """
    with ExitStack() as stack:
        opened = {path: stack.enter_context(_write(path, parts)) for path, parts in contents.items()}
        for path, file in opened.items():
            with operation("fsync", path):
                os.fsync(file.fileno())


@contextmanager
def _write(path: Path, parts: Iterable[bytes | memoryview]) -> Iterator[FileIO]:
    """A new file with these bytes, which may not be on the disk yet; it is open inside of the block."""
    with operation("open", path):
        file = path.open("xb", buffering=0)
    with file:
        for part in parts:
            view = memoryview(part).cast("B")
            while len(view):
                with operation("write", path):
                    view = view[file.write(view) :]
        yield file


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically: complete or not at all, in the place of an older one if there is one."""
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
    with operation("rename", target):
        os.replace(source, target)
    sync(target.parent)


def sync(directory: Path) -> None:
    """Flush the names in a directory to the disk."""
    with operation("fsync", directory):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def append(path: Path, data: bytes, *, durable: bool = False) -> int:
    """Append to a file all of the data or none of it, and flush it to the disk where `durable`.

    Returns:
      The file's new length.
    """
    with (
        operation("append", path),
        os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb", 0) as file,
    ):
        length, left = os.fstat(file.fileno()).st_size, memoryview(data)
        try:
            while left:  # a disk that fills up takes a part of it
                left = left[file.write(left) :]
        except BaseException:
            file.truncate(length)
            raise
        if durable:
            os.fsync(file.fileno())
        return length + len(data)


def cut(path: Path, length: int) -> None:
    """Shorten a file to `length` bytes, or create it empty."""
    with operation("truncate", path), os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT), "wb", 0) as file:
        if os.fstat(file.fileno()).st_size > length:
            file.truncate(length)
            os.fsync(file.fileno())


def remove(directory: Path) -> None:
    """Delete a directory and its contents; a symlink in it is deleted, not followed."""
    with operation("remove", directory):
        shutil.rmtree(directory)


def read(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises OSError for a symlink, and where the file is longer."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(27, f"longer than {limit} bytes", str(path))
    return data


def digest(path: Path) -> tuple[int, str]:
    """Return the length and SHA-256 of a regular file."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb", 0) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def read_into(path: Path, buffers: Sequence[memoryview]) -> tuple[int, str]:
    """Fill `buffers`, one after another, from a regular file; one of another length is not read.

    Another thread computes the digest meanwhile: it takes longer than reading.

    Returns:
      The file's length, and the SHA-256 of what has been read.
    """
    digest, total = hashlib.sha256(), sum(map(len, buffers))
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb", 0) as file, ThreadPoolExecutor(1) as hashing:
        length = os.fstat(file.fileno()).st_size
        for left in buffers if length == total else ():
            while len(left) and (count := file.readinto(left[:_BLOCK])):
                hashing.submit(digest.update, left[:count])
                left = left[count:]
    return length, digest.hexdigest()


def to_json(value: Any) -> bytes:
    """Return a value as JSON. Raises ValueError for a number that is not finite, TypeError for what JSON has not."""
    return json.dumps(value, indent=1, allow_nan=False).encode()


def holds(path: Path, parts: Iterable[bytes | memoryview]) -> bool:
    """Return True where a regular file holds exactly these bytes."""
    block = np.empty(_BLOCK, np.uint8)
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb", 0) as file:
        for part in parts:
            left = np.frombuffer(part, np.uint8) if len(part) else block[:0]
            while left.size:
                count = file.readinto(block[: left.size].data)
                if not count or not np.array_equal(block[:count], left[:count]):
                    return False
                left = left[count:]
        return not file.read(1)


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor.

    It does not block on a named pipe.

    Raises:
      OSError: as open(), and for a symlink or anything else that is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(22, "not a regular file", str(path))
    return descriptor

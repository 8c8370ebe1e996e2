"""Verification of a checkpoint's files against its manifest, and against the memory that they were written from."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlkit.runs import files

_JSON_LIMIT = 1 << 24


class Damaged(Exception):
    """A file of a checkpoint differs from what was written. Its text names the file."""


class Stored(NamedTuple):
    """A checkpoint on disk, of which the manifest and tree.json have been read and verified."""

    directory: Path
    tree: Any  # of tree.json
    num_bytes: int  # of leaves.bin, by the manifest
    sha256: str  # of leaves.bin, by the manifest


def find_damage(directory: Path) -> str | None:
    """Return the first difference of a checkpoint's files from what was written; it names the file. None: no damage."""
    path = directory / "leaves.bin"
    try:
        stored = open_checked(directory)
        verify(path, *files.digest(path), (stored.num_bytes, stored.sha256))
    except Damaged as problem:
        return str(problem)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None


def find_difference(directory: Path, written: Mapping[str, Sequence[bytes | memoryview]]) -> str | None:
    """Return the first difference of files from the memory that they were written from, in words; None: no difference.

    Reading and comparing take a fifth of the time of reading and hashing. `written` has the chunks of each file.
    """
    for name, chunks in written.items():
        path = directory / name
        try:
            if not files.holds(path, chunks):
                return f"{path} has other bytes"
        except OSError as error:
            return f"{path}: {error.strerror}"
    return None


def open_checked(directory: Path) -> Stored:
    """Read and verify the manifest and tree.json. Raises Damaged where they are not what was written."""
    path = directory / "manifest.json"
    try:
        if directory.is_symlink():
            raise Damaged(f"{directory} is a symlink")
        data = files.read(path, _JSON_LIMIT)
        manifest = json.loads(data.decode())
        if files.to_json(manifest) != data or set(manifest) != {"step", "tree.json", "leaves.bin"}:
            raise Damaged(f"{path} is not as it was written")
        if f"{manifest['step']:012d}" != directory.name:
            raise Damaged(f"{path} belongs to step {manifest['step']}")
        (num_bytes, sha256), tree_length_and_sha256 = manifest["leaves.bin"], manifest["tree.json"]
        path = directory / "tree.json"
        data = files.read(path, _JSON_LIMIT)
        verify(path, len(data), sha256_of([data]), tree_length_and_sha256)
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged(f"{path} is not as it was written") from None
    try:
        tree = json.loads(data.decode())
    except (ValueError, RecursionError):  # forged: its SHA-256 is right
        tree = None
    return Stored(directory, tree, num_bytes, sha256)


def verify(path: Path, length: int, sha256: str, expected: Any) -> None:
    """Raise Damaged unless a file has the length and SHA-256 of the manifest."""
    expected_length, expected_sha256 = expected
    if length != expected_length:
        raise Damaged(f"{path} has {length} bytes and should have {expected_length}")
    if sha256 != expected_sha256:
        raise Damaged(f"{path} does not have its SHA-256")


def sha256_of(chunks: Sequence[bytes | memoryview]) -> str:
    """Return the SHA-256 of chunks, one after another."""
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()

"""The files of a dataset: a directory that is whole or absent, in which nothing is code.

    offline/walker/
      000.bin ...    one leaf of the transitions each: [T, N, ...], little-endian, the leaves in the order of the tree
      manifest.json  rows, environments, the tree, each leaf's dtype, shape and SHA-256; its own SHA-256; written last

The directory is written under a temporary name and renamed. The names of the files come from their numbers, never from
the manifest, and a shape is accepted only where the length of its file agrees, so a forged one maps and allocates
nothing.
"""

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.ops._arrays import as_int
from rlkit.runs import files
from rlkit.types import ConfigError, PyTree, Transition

_MANIFEST, _MANIFEST_LIMIT, _FORMAT = "manifest.json", 1 << 24, "rlkit dataset 1"
_PIECE = 1 << 24  # bytes of one write
_NUMPY = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64"
_DTYPES = {name: np.dtype(name) for name in _NUMPY.split()} | {"bfloat16": np.dtype(jnp.bfloat16)}
_REMEDY = "get the dataset anew"


class DatasetError(ConfigError):
    """A dataset that is missing or damaged. Its text is one line that names the file."""


class _Spec(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype

    def num_bytes(self, steps: tuple[int, int]) -> int:
        """Bytes of T x N steps."""
        return math.prod((*steps, *self.shape)) * self.dtype.itemsize


@contextmanager
def writer(
    folder: str | Path, example: Transition, num_envs: int, *, extra: dict[str, Any] | None = None
) -> Iterator["Writer"]:
    """Write a new dataset: `with writer(folder, example, num_envs) as w: w.add(rollout)`, any number of times.

    Each rollout is written to the disk at once. The folder appears when the block ends without an error; after an error
    nothing of it stays. What remains of a killed process is deleted by the next writer of the same folder.

    Args:
      folder: a new directory; the folders above it are made.
      example: one step, leaves [...], in dictionaries, tuples and lists. Integers that number classes count from 0, as
        in `rlkit.spaces`, whatever those of the environment start at.
      num_envs: N.
      extra: values that JSON can represent, for `Dataset.extra`: for example the origin of the transitions.

    Raises:
      ConfigError: the folder exists or cannot be made, the example cannot be stored, or no row was added.
      OSError: the disk is full or fails.
    """
    target = Path(folder)
    new = Writer(target.with_name(files.TEMPORARY + target.name), example, num_envs, {} if extra is None else extra)
    _check_new(target)
    _discard(new.folder)
    try:
        files.make_directory(new.folder)
        yield new
        new.finish()
        _check_new(target)
        files.rename(new.folder, target)
    except BaseException:
        with suppress(OSError):
            _discard(new.folder)
        raise


class Writer:
    """A dataset that is being written; `writer` makes one."""

    def __init__(self, folder: Path, example: Transition, num_envs: int, extra: dict[str, Any]):
        num_envs = as_int("num_envs", num_envs)
        if not isinstance(example, Transition):
            raise ConfigError(f"example is a {type(example).__name__} and must be a Transition, of one step")
        paths, self._structure = jax.tree_util.tree_flatten_with_path(example)
        numbered = jax.tree.unflatten(self._structure, range(len(paths)))
        tree = {name: _describe_tree(node, name) for name, node in numbered._asdict().items()}
        self._leaves = [
            _Leaf(folder / _file(number), jax.tree_util.keystr(path, simple=True, separator="."), leaf)
            for number, (path, leaf) in enumerate(paths)
        ]
        _check_step(numbered, [leaf.spec for leaf in self._leaves])
        if not isinstance(extra, dict) or not _is_json(extra):
            raise ConfigError("extra must be a dictionary of text, finite numbers, lists and such dictionaries")
        self._about = {"format": _FORMAT, "num_rows": 0, "num_envs": num_envs, "tree": tree, "extra": extra}
        self.folder, self.num_rows = folder, 0

    def add(self, rollout: Transition) -> None:
        """Write the next rows, leaves [T, N, ...] with T >= 1. The steps of an environment must be consecutive.

        Where they are not, as between two sources, the last step before the gap must be terminated or truncated.

        Raises:
          ValueError: the rollout differs from the example in structure, shapes or dtypes; nothing was written.
          OSError: the disk is full or fails; this dataset can no longer be finished.
        """
        if (given := jax.tree.structure(rollout)) != self._structure:
            raise ValueError(f"rollout has the structure {given}, expected {self._structure}, the example's")
        arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(rollout)]
        num_rows, num_envs = max(np.shape(rollout.reward)[:1], default=0), self._about["num_envs"]
        for leaf, array in zip(self._leaves, arrays, strict=True):
            shape, dtype = leaf.spec
            if num_rows < 1 or array.shape != (num_rows, num_envs, *shape) or array.dtype != dtype:
                raise ValueError(
                    f"{leaf.name} is {array.dtype} of shape {array.shape}, expected {dtype} of shape "
                    f"(T, {', '.join(map(str, (num_envs, *shape)))}), T >= 1 as of the reward, by the example"
                )
        for leaf, array in zip(self._leaves, arrays, strict=True):
            leaf.append(array)
        self.num_rows += num_rows

    def finish(self) -> None:
        """Flush everything to the disk, the manifest last."""
        if not self.num_rows:
            raise ConfigError("a dataset must hold a row, and none was added; call `add` before the end of the block")
        steps = (self.num_rows, self._about["num_envs"])
        leaves = [leaf.finish(steps) for leaf in self._leaves]
        files.write(self.folder / _MANIFEST, [_sealed(self._about | {"num_rows": self.num_rows, "leaves": leaves})])
        files.sync(self.folder)


class _Leaf:
    """The growing file of one leaf."""

    def __init__(self, path: Path, name: str, example: Any):
        dtype = str(example.dtype if hasattr(example, "dtype") else jnp.asarray(example).dtype)
        if dtype not in _DTYPES:
            raise ConfigError(f"{name} is {dtype} and must hold plain numbers; of keys take jax.random.key_data")
        self.name, self.spec = name, _Spec(np.shape(example), _DTYPES[dtype])
        self._path, self._length, self._digest = path, 0, hashlib.sha256()

    def append(self, array: np.ndarray) -> None:
        """Write an array after those before."""
        left: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self._digest.update(left)
        while len(left):
            written = files.append(self._path, left[:_PIECE]) - self._length
            self._check(0 < written <= len(left[:_PIECE]))
            left, self._length = left[written:], self._length + written

    def finish(self, steps: tuple[int, int]) -> dict[str, Any]:
        """Flush the file to the disk; its entry in the manifest."""
        self._check(files.append(self._path, b"", durable=True) == self._length == self.spec.num_bytes(steps))
        return {"dtype": str(self.spec.dtype), "shape": self.spec.shape, "sha256": self._digest.hexdigest()}

    def _check(self, has_expected_length: bool) -> None:
        """Raise OSError where the file has not the length of what was written."""
        if not has_expected_length:
            raise OSError(5, "not as long as what was written to it", str(self._path))


def read(folder: Path, verify: bool) -> tuple[Transition, dict[str, Any]]:
    """Read the transitions of a dataset, leaves [T, N, ...] mapped from its files, and its `extra`.

    Raises:
      DatasetError: there is none, or it is damaged; the error names the file.
    """
    about = _manifest(folder)
    try:
        num_rows, num_envs = _shape([about["num_rows"], about["num_envs"]])
        specs = [_Spec(_shape(leaf["shape"]), _DTYPES[leaf["dtype"]]) for leaf in about["leaves"]]
        digests = [leaf["sha256"] for leaf in about["leaves"]]
        numbered = Transition(**{name: _rebuild_tree(node) for name, node in about["tree"].items()})
        # NumPy must be able to address the sizes, also those beside a 0, which add nothing to a file's length.
        spans = [math.prod(max(n, 1) for n in (num_rows, num_envs, *spec.shape)) for spec in specs]
        if not 0 < num_rows * num_envs <= max(spans) < 1 << 58 or not isinstance(about["extra"], dict):
            raise ValueError
        if jax.tree.leaves(numbered) != list(range(len(specs))):
            raise ValueError
        _check_step(numbered, specs)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DatasetError(f"{folder / _MANIFEST} must describe transitions, and it does not; {_REMEDY}") from None
    paths = [folder / _file(number) for number in range(len(specs))]
    leaves = [_map(path, (num_rows, num_envs), spec) for path, spec in zip(paths, specs, strict=True)]
    for path, digest in zip(paths, digests, strict=True) if verify else ():
        if files.digest(path)[1] != digest:
            raise DatasetError(f"{path} does not have its SHA-256; {_REMEDY}")
    return jax.tree.map(lambda number: leaves[number], numbered), about["extra"]


def _manifest(folder: Path) -> dict[str, Any]:
    """The manifest, if it is as it was written. A forged one may still hold anything."""
    if folder.is_symlink():
        raise DatasetError(f"folder={str(folder)!r} must not be a symlink; give the directory it points to")
    if not folder.is_dir():
        raise DatasetError(f"folder={str(folder)!r} must be a dataset, and there is none; `datasets.writer` makes one")
    path = folder / _MANIFEST
    try:
        raw = files.read(path, _MANIFEST_LIMIT)
        about = json.loads(raw.decode())["dataset"]
        is_whole = isinstance(about, dict) and _sealed(about) == raw
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; {_REMEDY}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        is_whole = False
    if not is_whole:
        raise DatasetError(f"{path} is not as it was written; {_REMEDY}")
    if about.get("format") != _FORMAT:
        raise DatasetError(f"{path} must be of the format {_FORMAT!r}, and it is not; use the rlkit that wrote it")
    return about


def _map(path: Path, steps: tuple[int, int], spec: _Spec) -> np.ndarray:
    """A file's numbers [T, N, ...], mapped: read on access."""
    expected, shape = spec.num_bytes(steps), (*steps, *spec.shape)
    try:
        with os.fdopen(files.open_regular(path, os.O_RDONLY), "rb", 0) as file:
            length = os.fstat(file.fileno()).st_size
            if length != expected:
                raise DatasetError(f"{path} has {length} bytes and should have {expected}; {_REMEDY}")
            if expected:
                return np.memmap(file, spec.dtype, "r", shape=shape)
        return np.broadcast_to(np.zeros((), spec.dtype), shape)  # an empty file cannot be mapped
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}; {_REMEDY}") from None


def _check_step(numbered: Transition, specs: Sequence[_Spec]) -> None:
    """Raise ConfigError unless the reward is a scalar and both flags are scalar bools."""
    for name in ("reward", "terminated", "truncated"):
        number = getattr(numbered, name)
        spec = specs[number] if type(number) is int else None
        if spec is None or spec.shape or (name != "reward" and spec.dtype != np.bool_):
            raise ConfigError(f"{name} must be a {'number' if name == 'reward' else 'bool'} of shape [] in the example")


def _shape(value: Any) -> tuple[int, ...]:
    """A shape. Raises ValueError unless the value is a list of natural numbers."""
    if not isinstance(value, list) or len(value) > 30 or not all(type(n) is int and n >= 0 for n in value):
        raise ValueError
    return tuple(value)


def _file(number: int) -> str:
    return f"{number:03d}.bin"


def _check_new(target: Path) -> None:
    """Raise ConfigError unless nothing exists at the path and a directory can be made there."""
    files.require_plain_name(target, f"folder={str(target)!r}", "offline/first")
    if os.path.lexists(target):
        raise ConfigError(f"folder={str(target)!r} must not exist, as nothing is overwritten; choose another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"folder={str(target)!r} must be writable: {error.strerror}; choose another name") from None


def _discard(temporary: Path) -> None:
    if os.path.lexists(temporary):
        files.remove(temporary)


def _describe_tree(node: PyTree, name: str) -> Any:
    """Describe a tree of integers in JSON. Raises ConfigError, with the name, for a node that JSON cannot describe."""
    if node is None or type(node) is int:
        return node
    if type(node) is dict and all(isinstance(key, str) for key in node):
        return {"dict": {key: _describe_tree(node[key], f"{name}.{key}") for key in sorted(node)}}
    if type(node) in (tuple, list):
        return {type(node).__name__: [_describe_tree(child, f"{name}.{index}") for index, child in enumerate(node)]}
    kind = type(node).__name__
    raise ConfigError(f"{name} is a {kind} and must be a tuple, list or dictionary with text for keys; make it one")


def _rebuild_tree(node: Any) -> PyTree:
    """Build the tree of a description.

    A forged description raises ValueError, TypeError, KeyError, AttributeError or RecursionError, or gives any tree.
    """
    if node is None or type(node) is int:
        return node
    ((kind, children),) = node.items()
    if kind == "dict":
        return {key: _rebuild_tree(child) for key, child in children.items()}
    return {"tuple": tuple, "list": list}[kind](_rebuild_tree(child) for child in children)


def _is_json(value: Any) -> bool:
    """True where JSON represents the value exactly."""
    try:
        return json.loads(files.to_json(value)) == value
    except (TypeError, ValueError, RecursionError):
        return False


def _sealed(about: dict[str, Any]) -> bytes:
    """The bytes of manifest.json, with the SHA-256 of its content, so that any change is detected."""
    assert sys.byteorder == "little"
    return files.to_json({"sha256": hashlib.sha256(files.to_json(about)).hexdigest(), "dataset": about})

"""Checkpoints: a pytree of arrays in a directory that is whole or absent, and verified before it is used.

    checkpoints/000000500000/
      tree.json      the path, shape, dtype and offset of every leaf, and the caller's `extra` values
      leaves.bin     the leaves' bytes, little-endian, each at a multiple of 64
      manifest.json  the step, and the length and SHA-256 of the two files above; written last

The directory is written under a temporary name and renamed. Nothing in it is code: JSON and plain numbers. Sizes come
from the template, never from the file, so a forged shape allocates nothing. Each file is read once: what was verified
is what is used.

The format is not orbax's because of measurements and of what is promised: orbax adds 0.48 s of import and 0.1 s to each
save of a small agent (this: 0.006 s, most of it fsync), casts to the template's dtypes silently, and writes through a
C++ store in which no test can fail one operation at a time.
"""

import itertools
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from rlkit.runs import files, run_directory
from rlkit.runs.checkpoints import leaves
from rlkit.runs.checkpoints.verification import (
    Damaged,
    Stored,
    find_damage,
    find_difference,
    open_checked,
    sha256_of,
    verify,
)
from rlkit.types import ConfigError, PyTree


class CheckpointError(ConfigError):
    """A checkpoint that is missing or damaged. Its text is one line that names the file."""


def save(
    run: Path, step: int, state: PyTree, extra: dict[str, Any], *, keep: int | None = None, best: int | None = None
) -> Path:
    """Write a checkpoint, read it back to verify it, then delete all but the newest `keep`.

    Args:
      run: a run directory.
      step: int >= 0, environment steps; the name of the checkpoint.
      state: pytree of arrays, typed keys included.
      extra: values that JSON can represent; `restore` returns them.
      keep: number of checkpoints that are not deleted; None for all.
      best: step of one more that is not deleted.

    Returns:
      The checkpoint's directory. Where a whole checkpoint of this step exists, nothing is written.

    Raises:
      OSError: the disk is full or fails; no half-written checkpoint stays, and earlier ones are untouched.
    """
    folder = run / run_directory.CHECKPOINTS
    target = folder / f"{step:012d}"
    if target.exists():
        if find_damage(target) is None:
            return target
        aside = (folder / f".damaged-{target.name}-{number}" for number in itertools.count(1))
        files.rename(target, next(path for path in aside if not path.exists()))
    entries, total = leaves.layout(state)
    tree = files.to_json({"step": step, "leaves": entries, "extra": extra})
    chunks = leaves.to_bytes(state)
    temporary = folder / f"{files.TEMPORARY}{target.name}"
    clean(run)
    try:
        files.make_directory(temporary, durable=False)  # it is renamed
        with ThreadPoolExecutor(1) as hashing:  # while the disk works
            digest = hashing.submit(sha256_of, chunks)
            files.write_all({temporary / "tree.json": [tree], temporary / "leaves.bin": chunks})
        digests = {"tree.json": [len(tree), sha256_of([tree])], "leaves.bin": [total, digest.result()]}
        manifest = files.to_json({"step": step} | digests)
        files.write(temporary / "manifest.json", [manifest])
        files.sync(temporary)
        files.rename(temporary, target)
    except BaseException:
        clean(run, quietly=True)
        raise
    written = {"tree.json": [tree], "leaves.bin": chunks, "manifest.json": [manifest]}
    if problem := find_difference(target, written):
        raise OSError(5, f"what was read back differs from what was written: {problem}", str(target))
    for old in steps(run)[: -keep or None] if keep else []:
        if old not in (step, best):
            files.remove(folder / f"{old:012d}")
    return target


def steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints in a run directory, ascending; damaged ones are among them."""
    folder = run / run_directory.CHECKPOINTS
    paths = folder.iterdir() if folder.is_dir() else []
    return sorted(int(path.name) for path in paths if path.name.isdigit() and len(path.name) >= 12)


def clean(run: Path, *, quietly: bool = False) -> None:
    """Delete the temporary directories of interrupted saves."""
    for path in (run / run_directory.CHECKPOINTS).glob(f"{files.TEMPORARY}*"):
        try:
            files.remove(path)
        except OSError:
            if not quietly:
                raise


def restore(run: Path, template: PyTree, step: int | None = None) -> tuple[PyTree, int, dict[str, Any]]:
    """Read the newest whole checkpoint, or that of `step`, as `Reader.restore` does."""
    return Reader(run).restore(template, step)


class Reader:
    """Reads the checkpoints of one run, each file at most once."""

    def __init__(self, run: Path):
        self.run = run
        self._opened: dict[int, Stored | str] = {}  # by step; the problem of one that is damaged

    def extra(self) -> dict[str, Any]:
        """Return the `extra` values of the newest checkpoint whose description is whole; they are empty without one.

        The leaves are not read.
        """
        for candidate in steps(self.run)[::-1]:
            try:
                return _checked_tree(self._open(candidate))["extra"]
            except (Damaged, CheckpointError):
                continue
        return {}

    def restore(
        self,
        template: PyTree,
        step: int | None = None,
        *,
        fields: Collection[str] | None = None,
        template_of: Callable[[dict[str, Any]], PyTree] | None = None,
    ) -> tuple[PyTree, int, dict[str, Any]]:
        """Read the newest whole checkpoint, or that of `step`.

        Where the newest is damaged, a warning names the file and the one before is read.

        Args:
          template: pytree of arrays or jax.ShapeDtypeStruct of the same structure, shapes and dtypes.
          step: int, or None for the newest.
          fields: paths of parts of the state, such as agent/params. `template` is then a dict of a part by its path,
            and only these are returned. None for the whole state.
          template_of: returns the template of a checkpoint with such `extra`, in place of `template`.

        Returns:
          state, step, extra.

        Raises:
          CheckpointError: there is no checkpoint, all are damaged, or that of `step` is.
          ConfigError: a leaf of the template differs from the checkpoint's; the error names it.
        """
        run, available = self.run, steps(self.run)
        if step is not None and step not in available:
            raise CheckpointError(
                f"run={str(run)!r} must hold a checkpoint of step {step}; there are {available or 'none'}"
            )
        if not available:
            raise CheckpointError(f"run={str(run)!r} must hold a checkpoint, and there is none; train it anew")
        problems = []
        for candidate in [step] if step is not None else available[::-1]:
            try:
                stored = self._open(candidate)
                extra = _checked_tree(stored)["extra"]
                return _load(stored, template_of(extra) if template_of else template, fields), candidate, extra
            except Damaged as problem:
                problems.append(str(problem))
            if step is None:
                directory = _directory(run, candidate)
                warnings.warn(f"checkpoint {directory} is damaged: {problems[-1]}; using the one before", stacklevel=2)
        raise CheckpointError(f"run={str(run)!r} must hold a whole checkpoint: {'; '.join(problems)}; train it anew")

    def _open(self, step: int) -> Stored:
        """The manifest and tree.json of a checkpoint. Raises Damaged where they are not what was written."""
        if step not in self._opened:
            try:
                self._opened[step] = open_checked(_directory(self.run, step))
            except Damaged as problem:
                self._opened[step] = str(problem)
        if isinstance(stored := self._opened[step], str):
            raise Damaged(stored)
        return stored


def _directory(run: Path, step: int) -> Path:
    return run / run_directory.CHECKPOINTS / f"{step:012d}"


def _checked_tree(stored: Stored) -> dict[str, Any]:
    """The content of tree.json, with `leaves` and `extra`. Raises CheckpointError where it has another form."""
    tree = stored.tree
    if isinstance(tree, dict) and isinstance(tree.get("leaves"), list) and isinstance(tree.get("extra"), dict):
        return tree
    raise CheckpointError(
        f"{stored.directory / 'tree.json'} must describe a tree of arrays, and it does not; train it anew"
    )


def _load(stored: Stored, template: PyTree, fields: Collection[str] | None) -> PyTree:
    """Read and verify the leaves, after comparing their description with the template's.

    Raises:
      Damaged: leaves.bin is not what was written.
      ConfigError: the description differs from the template.
    """
    entries, total = leaves.layout(template)
    stored_entries = _checked_tree(stored)["leaves"]
    if fields is not None:
        within = tuple(f"{field}/" for field in fields)
        stored_entries = [x for x in stored_entries if isinstance(x, dict) and f"{x.get('path')}/".startswith(within)]
    if difference := leaves.first_difference(stored_entries, entries):
        if fields is None and (missing := leaves.missing_fields(stored_entries, entries)):
            raise ConfigError(
                f"{stored.directory} must have the fields {', '.join(missing)}, and another config or version of rlkit "
                "wrote it without them; use the config and the version (versions.json) of the run, or train it anew"
            )
        raise ConfigError(f"{stored.directory}: {difference}; use the config that the run was made with")
    path = stored.directory / "leaves.bin"
    try:
        if (length := path.stat().st_size) != stored.num_bytes:  # before memory is taken
            raise Damaged(f"{path} has {length} bytes and should have {stored.num_bytes}")
        if fields is None and (stored_entries != entries or total != stored.num_bytes):
            raise ValueError
        offsets = {entry["path"]: entry["offset"] for entry in stored_entries}
        flat, treedef = jax.tree.flatten(template)
        # As in the file, where a leaf without numbers begins where the next one does.
        order = sorted(range(len(flat)), key=lambda i: (offsets[entries[i]["path"]], flat[i].size))
        ordered = [flat[i] for i in order]
        buffers = leaves.buffers(ordered, [offsets[entries[i]["path"]] for i in order], length)
    except (ValueError, TypeError):
        tree = stored.directory / "tree.json"
        raise CheckpointError(f"{tree} must place the leaves as this version does; train it anew") from None
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None
    try:
        length, sha256 = files.read_into(path, [buffer.data for buffer in buffers])
    except OSError as error:
        raise Damaged(f"{path}: {error.strerror}") from None
    verify(path, length, sha256, (stored.num_bytes, stored.sha256))
    read = dict(zip(order, leaves.from_buffers(buffers, ordered), strict=True))
    return jax.tree.unflatten(treedef, [read[i] for i in range(len(flat))])

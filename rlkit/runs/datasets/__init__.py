"""Datasets of transitions on disk, larger than memory: written rollout by rollout, mapped, sampled in slices.

    with datasets.writer("offline/walker", example, num_envs=16) as writer:
        writer.add(rollout)
    dataset = datasets.load("offline/walker")
    batch = dataset.sample_slices(0, num_slices=256, slice_len=8)

Samples are exactly uniform over slices, because slices are counted, not steps.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rlkit.ops._arrays import as_int
from rlkit.runs.datasets import storage
from rlkit.runs.datasets.archives import from_arrays, minari, minari_with_origin, read_npz, read_npz_with_origin
from rlkit.runs.datasets.origin import Origin
from rlkit.runs.datasets.storage import DatasetError, Writer, writer
from rlkit.types import ConfigError, Sample, Transition

__all__ = ["Dataset", "DatasetError", "Start", "Writer", "find", "from_arrays", "load", "minari", "read_npz", "writer"]

_BLOCK = 1 << 12  # steps of one block; only counts of slice starts per block stay in memory
_COUNTED = 1 << 20  # steps whose episode ends are read at a time to count slice starts
_AROUND = 1 << 16  # bytes that the kernel maps around a page that is touched, if they are in its cache
_MAX_MAPPED = 1 << 30  # bytes, an upper estimate, that sampling may leave mapped


class Start(NamedTuple):
    """First steps of slices in a dataset."""

    row: np.ndarray  # [B] int64
    env: np.ndarray  # [B] int64


@dataclass(eq=False, repr=False)
class Dataset:
    """T steps of N environments, on disk; only the parts in use are read."""

    steps: Transition  # leaves [T, N, ...], read-only and mapped
    extra: dict[str, Any]  # the values that were given to the writer
    origin: Origin | None = None  # of a dataset from elsewhere; None for a folder, whose integers count from 0
    _counts: dict[int, np.ndarray] = field(default_factory=dict)  # results of `_starts_before`, by slice length
    _mapped: int = 0  # upper bound on the bytes that sampling has mapped since the last release

    @property
    def num_rows(self) -> int:
        """T, steps of each environment."""
        return self.steps.reward.shape[0]

    @property
    def num_envs(self) -> int:
        """N, environments."""
        return self.steps.reward.shape[1]

    @property
    def size(self) -> int:
        """T * N, steps of all environments."""
        return self.num_rows * self.num_envs

    def __repr__(self) -> str:
        return f"Dataset({self.num_rows} steps of each of {self.num_envs} environments)"

    def chunks(self, num_rows: int) -> Iterator[Transition]:
        """Iterate over all rows in order, in memory; leaves [num_rows, N, ...], the last chunk may be shorter.

        This fills a replay buffer: `for chunk in dataset.chunks(1000): state = buffer.add(state, chunk)`.
        """
        as_int("num_rows", num_rows)
        return (self._rows(first, first + num_rows) for first in range(0, self.num_rows, num_rows))

    def _rows(self, first: int, stop: int) -> Transition:
        """The rows from `first` to before `stop`, in memory."""
        rows = jax.tree.map(lambda leaf: np.array(leaf[first:stop]), self.steps)
        _release(self.steps)
        return rows

    def num_slices(self, slice_len: int) -> int:
        """Return the number of slices of `slice_len` consecutive steps of one episode; they may overlap.

        The last episode of an environment counts although it may be unfinished. The first call for a length reads the
        ends of all episodes once, two bytes a step.
        """
        return int(self._starts_before(slice_len)[-1])

    def sample_slices(self, seed: int | np.random.Generator, num_slices: int, slice_len: int) -> Sample:
        """Sample uniformly from all slices of `slice_len` consecutive steps of one episode, with replacement.

        Beside the result, memory holds a small part of the episode ends, whatever the size of the dataset, and up to
        1 GiB of pages stay mapped, which the system reclaims when it needs them. The first call for a length counts the
        slices first, as `num_slices` does.

        Args:
          seed: an integer, or a generator, whose state advances.
          num_slices: B.
          slice_len: L.

        Returns:
          Sample of NumPy arrays. The item's leaves are [B, L, ...]; its last step is marked truncated unless it is
          terminated, so that a return computed along the slice bootstraps there. The index is the `Start` [B], and the
          weight [B] and the mask [B, L] are all 1 and True.

        Raises:
          ConfigError: no episode has `slice_len` steps, or an argument is out of range.
        """
        as_int("num_slices", num_slices)
        if not isinstance(seed, np.random.Generator):
            if not isinstance(seed, int | np.integer):
                raise ConfigError(f"seed is a {type(seed).__name__} and must be an integer or a numpy.random.Generator")
            if seed < 0:
                raise ConfigError(f"seed={seed} must be at least 0")
        total = self.num_slices(slice_len)
        if not total:
            raise ConfigError(f"slice_len={slice_len} must not exceed the longest episode of {self}; try a smaller one")
        start = self._find(np.random.default_rng(seed).integers(total, size=num_slices), slice_len)
        item = self._gather(start, slice_len)
        item.truncated[:, -1] |= ~item.terminated[:, -1]
        weight: Any = np.ones(num_slices, np.float32)
        mask: Any = np.ones((num_slices, slice_len), bool)
        return Sample(item, start, weight, mask)

    def _gather(self, start: Start, slice_len: int) -> Transition:
        """The steps of slices, leaves [B, L, ...], in memory."""
        rows, envs = start.row[:, None] + np.arange(slice_len), start.env[:, None]
        steps = rows * self.num_envs + envs
        for leaf in jax.tree.leaves(self.steps):
            if leaf[0].nbytes < mmap.PAGESIZE:
                first, num_steps = steps[:, 0], (slice_len - 1) * self.num_envs + 1
            else:  # the stretch of a slice would include the steps of the other environments
                first, num_steps = steps.reshape(-1), 1
            _expect(leaf, first, num_steps)
            self._mapped += first.size * (_AROUND + num_steps * leaf[0, 0].nbytes)
        item = jax.tree.map(lambda leaf: np.asarray(leaf[rows, envs]), self.steps)
        if self._mapped > _MAX_MAPPED:  # not after each sample: mapping the pages again would double its time
            _release(self.steps)
            self._mapped = 0
        return item

    @property
    def _block_rows(self) -> int:
        return max(_BLOCK // self.num_envs, 1)

    def _done(self, first: int, stop: int) -> np.ndarray:
        """[rows, N] bool, True where an episode ends."""
        return np.asarray(self.steps.terminated[first:stop] | self.steps.truncated[first:stop])

    def _starts(self, first: int, num_rows: int, slice_len: int) -> np.ndarray:
        """[R, N] bool, True for steps of the rows from `first` on that start a slice.

        R < num_rows where no later row starts one. `slice_len` - 1 more rows are read, so that slices that reach into
        the next part of the dataset are counted.
        """
        lacking = slice_len - 1
        done = self._done(first, min(first + num_rows + lacking, self.num_rows))
        ends = np.zeros((len(done) + 1, self.num_envs), np.int32)  # number of ends before each row
        np.cumsum(done, axis=0, out=ends[1:])
        # The last step of a slice may end its episode; of the others none.
        return ends[lacking : len(done)] == ends[: max(len(done) - lacking, 0)]

    def _starts_before(self, slice_len: int) -> np.ndarray:
        """[blocks + 1] int64, the number of slices that start before each block of rows; the last is that of all."""
        as_int("slice_len", slice_len)
        if slice_len not in self._counts:
            block = self._block_rows
            step = max(_COUNTED // (block * self.num_envs), 1) * block
            counts = [np.zeros(1, np.int64)]
            for first in range(0, self.num_rows - slice_len + 1, step):
                of_row = np.count_nonzero(self._starts(first, step, slice_len), axis=1)
                counts.append(np.add.reduceat(of_row, np.arange(0, len(of_row), block)))
                _release((self.steps.terminated, self.steps.truncated))
            self._counts[slice_len] = np.cumsum(np.concatenate(counts))
        return self._counts[slice_len]

    def _find(self, nth: np.ndarray, slice_len: int) -> Start:
        """The starts of the slices with the numbers `nth` [B]. The episode ends of a block are read at most once."""
        before = self._starts_before(slice_len)
        block_of = np.searchsorted(before, nth, side="right") - 1
        order = np.argsort(block_of, kind="stable")
        blocks, edges = np.unique(block_of[order], return_index=True)
        for leaf in (self.steps.terminated, self.steps.truncated):
            _expect(leaf, blocks * self._block_rows * self.num_envs, (self._block_rows + slice_len - 1) * self.num_envs)
        position = np.empty(len(nth), np.int64)  # row * N + env
        for block, members in zip(blocks, np.split(order, edges[1:]), strict=True):
            first = int(block) * self._block_rows
            starts = np.flatnonzero(self._starts(first, self._block_rows, slice_len))
            position[members] = first * self.num_envs + starts[nth[members] - before[block]]
        return Start(position // self.num_envs, position % self.num_envs)


def load(folder: str | Path, *, verify: bool = False) -> Dataset:
    """Open a dataset. Its manifest and the lengths of its files are read, with `verify` the files as well.

    Args:
      folder: as given to `writer`.
      verify: True to compare the SHA-256 of each file.

    Raises:
      DatasetError: there is none, or it is damaged; the error names the file.
    """
    return Dataset(*storage.read(Path(folder), verify))


def find(source: str | Path) -> Dataset:
    """Open the dataset that a config names.

    Args:
      source: a folder of `writer`; a NumPy archive (.npz) with the keys of `read_npz`; or minari:NAME, which has to be
        in the local store: nothing is downloaded.

    Raises:
      ConfigError: there is none, it is damaged, or its package is not installed.
    """
    text = str(source)
    if text.startswith("minari:"):
        steps, origin = minari_with_origin(text.removeprefix("minari:"), download=False)
        return Dataset(steps, {"source": text}, origin)
    if text.endswith(".npz"):
        steps, origin = read_npz_with_origin(source)
        return Dataset(steps, {"source": text}, origin)
    return load(source)


def _expect(leaf: Any, first: np.ndarray, num_steps: int) -> None:
    """Announce to the kernel the stretches of steps [K] that will be read next.

    The reads then overlap and bring these steps alone; otherwise the kernel reads 128 KiB around each page.
    """
    if isinstance(leaf.base, mmap.mmap):
        size = leaf[0, 0].nbytes
        for begin in (first * size).tolist():
            page = begin - begin % mmap.PAGESIZE
            leaf.base.madvise(mmap.MADV_WILLNEED, page, begin + num_steps * size - page)


def _release(leaves: Any) -> None:
    """Unmap pages that were read, which count as this process's memory. They may stay in the system's cache."""
    for leaf in jax.tree.leaves(leaves):
        if isinstance(leaf.base, mmap.mmap):
            leaf.base.madvise(mmap.MADV_DONTNEED)

"""rlkit.runs.datasets: what comes back from disk, in bounded memory."""

import mmap
import re
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dataset_rollouts import rollout, same, write

from rlkit.runs import datasets
from rlkit.runs.datasets import storage
from rlkit.types import ConfigError, Transition

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_what_was_added_comes_back_bit_for_bit(tmp_path, num_rows):
    steps = rollout(40, 3)
    extra = {"env": "é", "returns": [1.5, {"a": None}]}
    dataset = write(tmp_path / "a" / "b", steps, num_rows, extra=extra)
    assert same(dataset.steps, steps)
    assert (dataset.num_rows, dataset.num_envs, dataset.size, dataset.extra) == (40, 3, 120, extra)
    assert type(dataset.steps.obs["place"]) is np.memmap
    assert not any(leaf.flags.writeable for leaf in jax.tree.leaves(dataset.steps))
    assert same(datasets.load(tmp_path / "a" / "b", verify=True).steps, steps)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["b"]
    assert "40 steps" in repr(dataset)


def test_rollouts_of_jax_arrays_are_taken(tmp_path):
    steps = rollout(9, 2)._replace(obs=np.zeros((9, 2, 3), np.float32), next_obs=np.ones((9, 2, 3), np.float32))
    assert same(write(tmp_path / "a", jax.tree.map(jnp.asarray, steps), 4).steps, steps)


@pytest.mark.parametrize("num_rows", [1, 6, 17, 100])
def test_chunks_are_the_rows_in_order_and_in_memory(tmp_path, num_rows):
    steps = rollout(17, 2)
    chunks = list(write(tmp_path / "a", steps).chunks(num_rows))
    assert [len(c.reward) for c in chunks] == [min(num_rows, 17 - i) for i in range(0, 17, num_rows)]
    assert same(jax.tree.map(lambda *x: np.concatenate(x), *chunks), steps)
    for leaf in jax.tree.leaves(chunks[0]):
        assert type(leaf) is np.ndarray
        assert leaf.flags.writeable
        assert leaf.flags.owndata


LARGE = 2**21  # rows of 4 environments with 8 KiB of observation each: 64 GiB


@pytest.fixture
def large(tmp_path):
    """A dataset of 64 GiB, nearly all of it holes that take no place on the disk. Environment 3 ends often."""
    folder = tmp_path / "large"
    tiny = rollout(1, 4)._replace(obs=np.zeros((1, 4, 16, 64)), next_obs=(), action=(), extras=())
    write(folder, tiny)
    about = storage._manifest(folder) | {"num_rows": LARGE}
    (folder / "manifest.json").write_bytes(storage._sealed(about))
    for number, bytes_of_step in enumerate((16 * 64 * 8, 4, 1, 1)):
        with (folder / f"{number:03d}.bin").open("r+b") as file:
            file.truncate(LARGE * 4 * bytes_of_step)
    done = np.zeros((LARGE, 4), bool)
    done[::1000, 3] = True
    (folder / "003.bin").write_bytes(done.tobytes())
    (folder / "002.bin").write_bytes(bytes(LARGE * 4))
    return datasets.load(folder)


@pytest.mark.thorough
def test_drawing_takes_little_of_a_large_dataset(large, monkeypatch):
    """What is held and what is looked at, counted: of 64 GiB the result, and of 16 MiB of flags some thousands."""
    looked = []
    done = datasets.Dataset._done
    monkeypatch.setattr(datasets.Dataset, "_done", lambda self, a, b: looked.append((a, b)) or done(self, a, b))
    assert sum(x.nbytes for x in jax.tree.leaves(large.steps)) > 2**36
    tracemalloc.start()
    total = large.num_slices(20)
    held, peak = tracemalloc.get_traced_memory()
    runs, rest = divmod(LARGE - 1, 1000)  # the first row is an episode by itself
    assert total == 3 * (LARGE - 19) + runs * 981 + max(rest - 19, 0)
    assert held < 2**18
    assert peak < 16 * 2**20
    assert sum(stop - first for first, stop in looked) < 1.01 * LARGE
    looked.clear()
    tracemalloc.reset_peak()
    sample = large.sample_slices(0, 64, 20)
    assert large.num_slices(20) == total
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = sum(x.nbytes for x in jax.tree.leaves(sample))
    assert 64 * 20 * 8192 < result < 11 * 2**20
    assert peak < result + 2**20
    assert len(looked) == len(set(looked)) <= 64, "a block is looked at once, and nothing is counted again"
    assert max(stop - first for first, stop in looked) <= 1024 + 19


def mapped():
    """Bytes of files that are mapped into this process now."""
    return 1024 * int(re.search(r"RssFile:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])


@pytest.mark.thorough
def test_what_was_read_is_not_held(large, monkeypatch):
    """The system may keep pages in its cache; they must not count as this process's."""
    monkeypatch.setattr(datasets, "_MAX_MAPPED", 12 * 2**20)
    for read, may_stay in (
        (lambda: large.num_slices(21), 1),  # of 16 MiB
        (lambda: [large.sample_slices(seed, 64, 20) for seed in range(9)], 13),  # of 90
        (lambda: next(large.chunks(1000)), 1),  # of 31
    ):
        before = mapped()
        read()
        assert mapped() < before + may_stay * 2**20


class Recorder(mmap.mmap):
    """Memory that remembers what was asked for."""

    def madvise(self, option, *span):
        if option == mmap.MADV_DONTNEED:
            return
        start, length = span
        assert option == mmap.MADV_WILLNEED
        assert start % mmap.PAGESIZE == 0
        self.asked[start : start + length] = True


@pytest.mark.parametrize("size", [1, 300, 5000])
def test_the_disk_is_asked_for_what_is_gathered_and_little_else(size):
    num_rows, num_envs, slice_len = 2000, 3, 5
    memory = Recorder(-1, num_rows * num_envs * size)
    memory.asked = np.zeros(len(memory), bool)
    leaf = np.ndarray((num_rows, num_envs, size), np.uint8, buffer=memory)
    dataset = datasets.Dataset(Transition(leaf, (), np.zeros((num_rows, num_envs)), (), (), ()), {})
    start = datasets.Start(np.array([0, 700, 1995]), np.array([2, 0, 1]))
    dataset._gather(start, slice_len)
    asked = memory.asked.reshape(num_rows, num_envs, size)
    rows = start.row[:, None] + np.arange(slice_len)
    assert asked[rows, start.env[:, None]].all()
    one_by_one = size > mmap.PAGESIZE
    wanted, runs = (3 * slice_len * size, 3 * slice_len) if one_by_one else (3 * slice_len * size * num_envs, 3)
    assert memory.asked.sum() <= wanted + runs * 2 * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda d: d.sample_slices(0, 0, 2), "num_slices=0"),
        (lambda d: d.sample_slices(0, 2, True), "slice_len=True"),
        (lambda d: d.sample_slices(0, 2, 41), "slice_len=41 must not exceed the longest episode"),
        (lambda d: d.sample_slices(np.array([0, 1]), 2, 2), "seed is a ndarray and must be an integer or"),
        (lambda d: d.sample_slices(-1, 2, 2), "seed=-1"),
        (lambda d: d.num_slices(-1), "slice_len=-1"),
        (lambda d: d.chunks(0), "num_rows=0"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, call, said):
    dataset = write(tmp_path / "a", rollout(40, 2))
    with pytest.raises(ConfigError, match=said):
        call(dataset)

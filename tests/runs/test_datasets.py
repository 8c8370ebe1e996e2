"""rlkit.runs.datasets: what comes back from disk, and slices of it, drawn by an exact law in bounded memory."""

import mmap
import re
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from rlkit.replay.slice_index import slice_starts_from_done
from rlkit.runs import datasets
from rlkit.runs.datasets import storage
from rlkit.types import ConfigError, Transition


def rollout(num_rows, num_envs, *, seed=0, first=0, end=0.2):
    """[T, N, ...] arrays whose every step tells its row and environment; nested, six dtypes."""
    random = np.random.default_rng([seed, first])
    row, env = np.meshgrid(first + np.arange(num_rows), np.arange(num_envs), indexing="ij")
    terminated, truncated = random.random((2, num_rows, num_envs)) < end / 2
    half = random.normal(size=(num_rows, num_envs)).astype(jnp.bfloat16)
    obs = {"place": np.stack([row, env], -1).astype(np.int32), "more": [half, np.zeros((num_rows, num_envs, 0, 2))]}
    pixels = np.repeat(row[..., None] % 256, 3, -1).astype(np.uint8)
    after = {"place": obs["place"] + np.array([1, 0], np.int32), "more": obs["more"]}
    return Transition(obs, pixels, row.astype(np.float32), terminated, truncated, after, (None, {"x": row % 7 == 0}))


def example(steps):
    return jax.tree.map(lambda x: x[0, 0], steps)


def write(folder, steps, num_rows=None, **options):
    total, num_envs = steps.reward.shape
    with datasets.writer(folder, example(steps), num_envs, **options) as w:
        for first in range(0, total, num_rows or total):
            w.add(jax.tree.map(lambda x, i=first: x[i : i + (num_rows or total)], steps))
    return datasets.load(folder)


def raw(tree):
    return [(x.dtype, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and raw(a) == raw(b)


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


def legal(steps, slice_len):
    """[T, N] bool, by looking: of the steps of a slice all exist, and none but the last ends an episode."""
    done = steps.terminated | steps.truncated
    starts = np.zeros(done.shape, bool)
    for row in range(len(done) - slice_len + 1):
        starts[row] = ~done[row : row + slice_len - 1].any(0)
    return starts


@pytest.mark.parametrize("slice_len", [1, 4, 30, 31])
def test_the_law_of_slices_is_that_of_the_buffers(slice_len):
    steps = rollout(30, 3, end=0.1)
    done = jnp.asarray(steps.terminated | steps.truncated)
    np.testing.assert_array_equal(legal(steps, slice_len), slice_starts_from_done(done, slice_len))


@pytest.mark.parametrize(("num_rows", "num_envs"), [(1, 1), (29, 1), (29, 3), (64, 5)])
@pytest.mark.parametrize("block", [1, 6, 1000])
def test_every_slice_is_found_also_across_the_borders_of_blocks_and_reads(
    tmp_path, monkeypatch, num_rows, num_envs, block
):
    """Brute force: the nth slice is the nth legal start of the whole, for every n."""
    monkeypatch.setattr(datasets, "_BLOCK", block)
    monkeypatch.setattr(datasets, "_COUNTED", 3 * block)
    steps = rollout(num_rows, num_envs, end=0.1)
    dataset = write(tmp_path / "a", steps)
    for slice_len in (1, 2, 5, 8, 29, 65):
        places = np.argwhere(legal(steps, slice_len))
        assert dataset.num_slices(slice_len) == len(places)
        if len(places):
            nth = np.random.default_rng(0).permutation(len(places))
            start = dataset._find(nth, slice_len)
            np.testing.assert_array_equal(np.stack(start, 1), places[nth])


def test_a_slice_is_what_is_stored_and_bootstraps_at_its_end(tmp_path):
    steps = rollout(50, 3)
    dataset = write(tmp_path / "a", steps)
    sample = dataset.sample_slices(0, 300, 4)
    rows, envs = sample.index.row[:, None] + np.arange(4), sample.index.env[:, None]
    assert legal(steps, 4)[sample.index].all()
    stored = jax.tree.map(lambda x: x[rows, envs], steps)
    assert same(sample.item._replace(truncated=()), stored._replace(truncated=()))
    np.testing.assert_array_equal(sample.item.truncated[:, :-1], False)
    last = stored.terminated[:, -1]
    np.testing.assert_array_equal(sample.item.truncated[:, -1], stored.truncated[:, -1] | ~last)
    assert last.any()
    assert not last.all()
    assert sample.item.obs["place"].shape == (300, 4, 2)
    assert (sample.weight.dtype, sample.weight.shape, sample.mask.shape) == (np.float32, (300,), (300, 4))
    assert sample.weight.all()
    assert sample.mask.all()
    assert same(dataset.steps, steps), "the mark must not reach the disk"


def test_seeds_and_generators(tmp_path):
    dataset = write(tmp_path / "a", rollout(50, 3))
    a, b, c = (dataset.sample_slices(seed, 20, 2) for seed in (1, 1, 2))
    assert same(a, b)
    assert not same(a.index, c.index)
    generator = np.random.default_rng(1)
    assert same(dataset.sample_slices(generator, 20, 2), a)
    assert not same(dataset.sample_slices(generator, 20, 2).index, a.index)


def by_block(dataset, random, num_slices, slice_len):
    """Biased: blocks equally likely, however many slices they hold."""
    before = dataset._starts_before(slice_len)
    counts = np.diff(before)
    block = random.choice(np.flatnonzero(counts), num_slices)
    return dataset._find(before[block] + random.integers(counts[block]), slice_len)


def by_step(dataset, random, num_slices, slice_len):
    """Biased: steps equally likely, and the next legal start is taken."""
    starts = np.flatnonzero(legal(dataset.steps, slice_len))
    drawn = np.searchsorted(starts, random.integers(starts[-1] + 1, size=num_slices))
    return datasets.Start(*np.divmod(starts[drawn], dataset.num_envs))


def exact(dataset, random, num_slices, slice_len):
    return dataset.sample_slices(random, num_slices, slice_len).index


CASES = [(1, 1.0), (2, 0.2), (6, 0.05), (12, 0.02)]


@pytest.mark.thorough
@pytest.mark.parametrize(("draw", "fair"), [(exact, True), (by_block, False), (by_step, False)])
def test_every_slice_is_equally_likely(tmp_path, monkeypatch, draw, fair):
    """Chi-square; a family-wise alpha of 1e-6 for the fair sampler, and biased samplers that it must tell apart."""
    monkeypatch.setattr(datasets, "_BLOCK", 20)
    random = np.random.default_rng(7)
    found = []
    for number, (slice_len, end) in enumerate(CASES):
        steps = rollout(80, 3, seed=number, end=end)
        starts = legal(steps, slice_len)
        start = draw(write(tmp_path / str(number), steps), random, 24_000, slice_len)
        counts = np.zeros(starts.shape, np.int64)
        np.add.at(counts, tuple(start), 1)
        assert not counts[~starts].any()
        expected = counts.sum() / starts.sum()
        assert expected > 50
        statistic = ((counts[starts] - expected) ** 2 / expected).sum()
        found.append(statistic < chi2.isf(1e-6 / len(CASES), starts.sum() - 1))
    assert all(found) if fair else not all(found[1:])


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
        (lambda d: d.sample_slices(None, 2, 2), "seed is a NoneType"),
        (lambda d: d.sample_slices(-1, 2, 2), "seed=-1"),
        (lambda d: d.num_slices(-1), "slice_len=-1"),
        (lambda d: d.chunks(0), "num_rows=0"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, call, said):
    dataset = write(tmp_path / "a", rollout(40, 2))
    with pytest.raises(ConfigError, match=said):
        call(dataset)

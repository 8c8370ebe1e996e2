"""rlkit.runs.datasets: slices of what is on disk, drawn by an exact law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dataset_rollouts import rollout, same, write
from scipy.stats import chi2

from rlkit.replay.slice_index import slice_starts_from_done
from rlkit.runs import datasets

pytestmark = pytest.mark.thorough


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

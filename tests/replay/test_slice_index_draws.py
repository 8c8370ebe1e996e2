"""rlkit.replay.slice_index: probabilities of the draws, and passes over all slices."""

import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2
from slice_index_model import (
    KINDS,
    Model,
    batch_of_pass,
    build,
    filled_twice,
    picture,
    sample,
    starts,
)

from rlkit.replay import slice_index

pytestmark = pytest.mark.thorough


def probabilities(model: Model, sampling: str) -> dict[tuple[int, int], float]:
    groups = [list(model.slices())] if sampling == "slice" else model.episodes()
    return {start: 1 / len(groups) / len(group) for group in groups for start in group}


def p_value(batch, expected: dict[tuple[int, int], float]) -> float:
    """P-value of Pearson's chi-square test that the batch's starts have these probabilities."""
    counts = Counter(zip(batch.row.tolist(), batch.env.tolist(), strict=True))
    if not counts.keys() <= expected.keys():
        return 0.0
    n = counts.total()
    assert n * min(expected.values()) >= 5
    statistic = sum((counts[start] - n * p) ** 2 / (n * p) for start, p in expected.items())
    return float(chi2.sf(statistic, len(expected) - 1))


NUM_CHI_SQUARE_TESTS = 10

ALPHA = 1e-6 / NUM_CHI_SQUARE_TESTS  # so that all of them together fail by chance once in a million


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_draws_have_the_documented_probabilities(kind):
    state, model = filled_twice(**KINDS[kind])
    expected = probabilities(model, state.sampling)
    assert p_value(sample(state, jax.random.key(0), num_slices=100_000), expected) > ALPHA


@pytest.mark.parametrize("sampling", ["slice", "episode"])
def test_a_short_and_a_long_episode(sampling):
    """Lengths 5 and 95, slices of 5: 1 and 91 starts, as likely each, or half the draws for each episode."""
    state = build(picture("." * 5 + "|" + "." * 95 + "|"), slice_len=5, sampling=sampling)
    batch = sample(state, jax.random.key(1), num_slices=200_000)
    by_slice = dict.fromkeys([(0, 0), *((t, 0) for t in range(5, 96))], 1 / 92)
    by_episode = dict.fromkeys(by_slice, 1 / 182) | {(0, 0): 1 / 2}
    right, wrong = (by_slice, by_episode) if sampling == "slice" else (by_episode, by_slice)
    assert p_value(batch, right) > ALPHA
    assert p_value(batch, wrong) < ALPHA


@pytest.mark.thorough
def test_a_biased_sampler_fails_the_chi_square_test():
    """Modulo 2^10 instead of all bits: some of 92 starts come 12/11 as often."""
    state = build(picture("." * 5 + "|" + "." * 95 + "|"), slice_len=5)
    item = jax.random.bits(jax.random.key(0), (200_000,)) % 2**10 % 92
    row = np.where(np.asarray(item) == 0, 0, np.asarray(item) + 4)
    batch = slice_index.at(state, jnp.asarray(row), jnp.zeros(200_000, jnp.int32))
    assert p_value(batch, dict.fromkeys(starts(state), 1 / 92)) < ALPHA


def test_the_last_step_is_drawn():
    """An episode of 5, slices of 2: starts 0 to 3, a quarter each."""
    state = build(picture(".....|"), slice_len=2)
    batch = sample(state, jax.random.key(2), num_slices=100_000)
    np.testing.assert_allclose(np.bincount(batch.row, minlength=4) / 100_000, 0.25, atol=0.01)


@pytest.mark.thorough
def test_draws_reach_everything_among_hundreds_of_millions():
    """A ring of 600M rows that stores 346M, without a queue; float32 could name only every 32nd of its slices."""
    state = slice_index.init(600_000_000, 1, 4, cross_episodes=True)
    rows = jnp.uint32(346_000_003)
    state = state.replace(ring=state.ring.with_counts(head=rows, slot=rows, rows=rows))
    assert slice_index.size(state) == 346_000_000
    row = np.asarray(sample(state, jax.random.key(0), num_slices=2**20).row)
    for modulus in (2, 3, 32):
        shares = np.bincount(row % modulus) / row.size
        np.testing.assert_allclose(shares, 1 / modulus, atol=0.005)
    assert row.max() < 346_000_000
    # A remainder of 32 bits would draw the lower 0.413 of them 13 times as often as others 12 times.
    np.testing.assert_allclose(np.mean(row < 2**32 % 346_000_000), 2**32 % 346_000_000 / 346e6, atol=0.003)


@pytest.mark.parametrize("kind", ["strict", "padded"])
def test_a_pass_draws_each_slice_once(kind):
    state, model = filled_twice(**KINDS[kind])
    total, visited = int(slice_index.size(state)), []
    for k in range(math.ceil(total / 7)):
        batch = batch_of_pass(state, jax.random.key(0), k, num_slices=7)
        real = np.asarray(batch.mask).any(axis=1)
        assert np.array_equal(real, 7 * k + np.arange(7) < total)
        visited += zip(batch.row[real].tolist(), batch.env[real].tolist(), strict=True)
    assert len(visited) == total
    assert set(visited) == set(model.slices())
    assert visited != sorted(visited)
    assert not np.any(batch_of_pass(state, jax.random.key(0), math.ceil(total / 7), num_slices=7).mask)


def test_batches_of_a_pass_may_share_their_key():
    state, _ = filled_twice()
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        first, again = (batch_of_pass(state, key, 0, num_slices=7) for _ in range(2))
    np.testing.assert_array_equal(first.row, again.row)

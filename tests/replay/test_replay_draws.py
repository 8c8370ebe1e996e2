"""Replay buffers: all items that may be drawn are drawn, with the documented probabilities."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replay_model import FEW, KINDS, B, Harness, Model, N, R, Start
from scipy.stats import chi2

pytestmark = pytest.mark.thorough


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_may_be_drawn_is_drawn(kind):
    harness = Harness(*KINDS[kind])
    for num_steps in (R, 1, 3):
        harness.add(num_steps)
        drawn = {start for i in range(12) for start in harness.sample(jax.random.key(i))[1]}
        assert drawn == set(harness.model.drawable())


def probabilities(kind: str, model: Model) -> dict[Start, float]:
    """Probability of each start that may be drawn, in this kind of buffer."""
    places = model.drawable()
    shares = dict.fromkeys(places, 1.0)
    if "prioritized" in kind:
        shares = {start: model.mass[start] for start in places}
    elif "episode" in kind:
        episode: dict[Start, Start] = {}  # of each start, the first start in the same episode
        for row, env in sorted(places):
            episode[row, env] = episode.get((row - 1, env), (row, env))
        sizes = Counter(episode.values())
        shares = {start: 1.0 / sizes[episode[start]] for start in places}
    return {start: share / sum(shares.values()) for start, share in shares.items()}


def p_value(counts: np.ndarray, shares: dict[Start, float]) -> float:
    """P-value of Pearson's chi-square test that counts [R, N] of drawn slots have these probabilities."""
    probability = np.zeros((R, N))
    for (row, env), share in shares.items():
        probability[row % R, env] = share
    drawn = counts.sum()
    possible = probability > 0
    expected = drawn * probability[possible]
    assert expected.min() > 5
    if counts[~possible].any():
        return 0.0
    return float(chi2.sf(((counts[possible] - expected) ** 2 / expected).sum(), possible.sum() - 1))


def histogram(harness: Harness, num_samples: int) -> np.ndarray:
    """Count the draws of each slot and environment, [R, N]."""

    @jax.jit
    def run(state):
        def one(counts, key):
            sample = harness.buffer.sample(state, key)
            drawn = sample.mask.reshape(B, -1)[:, 0].astype(jnp.int32)
            return counts.at[(sample.index.row % R).astype(jnp.int32), sample.index.env].add(drawn), None

        keys = jax.random.split(jax.random.key(3), num_samples)
        return jax.lax.scan(one, jnp.zeros((R, N), jnp.int32), keys)[0]

    return np.asarray(run(harness.state))


def filled(kind: str) -> Harness:
    """Fill a buffer twice, with measured priorities, and steps added after them."""
    harness = Harness(*KINDS[kind])
    for i, num_steps in enumerate((R, R, 5)):
        harness.add(num_steps)
        sample, starts = harness.sample(jax.random.key(i))
        priority = np.random.default_rng(i).uniform(0.05, 3.0, size=B).astype(np.float32)
        if starts:
            harness.update(sample, starts, priority)
    harness.add(2)
    return harness


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_draws_have_the_documented_probabilities(kind):
    """A family-wise alpha of 1e-6."""
    harness = filled(kind)
    expected = probabilities(kind, harness.model)
    assert p_value(histogram(harness, 2000), expected) > 1e-6 / len(KINDS)


@pytest.mark.parametrize(
    ("kind", "other"),
    [("slices", "slices by episode"), ("slices by episode", "slices"), ("prioritized", "uniform")],
)
def test_draws_of_another_kind_fail_the_chi_square_test(kind, other):
    harness = filled(kind)
    wrong = probabilities(other, harness.model)
    assert p_value(histogram(harness, 2000), wrong) < 1e-6 / len(KINDS)

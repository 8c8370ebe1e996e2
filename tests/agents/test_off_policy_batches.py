"""rlkit.agents.common.off_policy: what is drawn from the buffer, what it weighs, and what goes back to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_stand_ins import EXAMPLE, due, masses, real, repeated, rollout, stand_in

from rlkit.agents import dqn
from rlkit.agents.common import batches, off_policy
from rlkit.types import Sample, Transition


def test_priorities_go_back_to_the_items_that_were_drawn():
    """The stand-in's priority is 10 more than the reward of the item, by which its place is told."""
    state, update = stand_in(due, {"replay": "prioritized", "alpha": 1.0, "replay_ratio": 0.25})
    state, _ = jax.jit(update)(state, rollout(num_steps=2), jax.random.key(0))
    found, rewards = masses(state, 16), np.arange(16.0)
    written = found != found.min()
    assert 4 <= written.sum() < 16  # 4 gradient steps of 4 strata each
    np.testing.assert_allclose(found[written], 10 + rewards[written] + 1e-6, rtol=1e-6)
    np.testing.assert_allclose(found[~written], 1 + 1e-6, rtol=1e-6)


def test_dqn_writes_the_sizes_of_its_td_errors():
    agent, state = real({"alpha": 0.5, "double": False}, {"gamma": 0.9})
    static = agent.static
    key = jax.random.key(3)
    after, _ = jax.jit(agent.update)(state, rollout(), key)

    @jax.jit
    def drawn(state):
        sample_key, _ = jax.random.split(jax.random.split(key, 1)[0])
        sample = static.buffer.sample(off_policy.store(static, state, rollout()).replay.buffer, sample_key)
        return sample, [static.network.apply(state.params, (), x)[0] for x in (sample.item.obs, sample.item.next_obs)]

    sample, (q, next_q) = jax.tree.map(np.asarray, drawn(state))
    errors = np.abs(sample.item.reward + 0.9 * next_q.max(-1) - q[:, 0])
    expected = np.full(8, (1 + 1e-6) ** 0.5)
    expected[sample.index.row * 8 + sample.index.env] = (errors + 1e-6) ** 0.5
    np.testing.assert_allclose(masses(after, 8), expected, rtol=1e-5)


def test_beta_is_annealed():
    state, update = stand_in(due, {"replay": "prioritized"}, {"schedule_steps": 40.0})
    after = repeated(state, update, 6)
    np.testing.assert_allclose(after.replay.buffer.beta, [0.52, 0.64, 0.76, 0.88, 1.0, 1.0], rtol=1e-6)


def test_weights_follow_the_annealed_beta():
    """With alpha 1 the first rollout's items have masses 10 to 17, as their rewards say, and new ones the largest."""

    def look(state, sample, due):
        return {"weight": sample.weight, "reward": sample.item.reward}

    settings = {"replay": "prioritized", "alpha": 1.0, "batch_size": 8}
    state, update = stand_in(look, settings, {"beta": 0.0, "beta_end": 3.0, "schedule_steps": 32.0})
    first, _ = jax.jit(update)(state, rollout(), jax.random.key(0))
    np.testing.assert_array_equal(first.params["weight"], np.ones(8))  # of equal masses each is drawn once
    np.testing.assert_allclose(masses(first, 8), np.arange(10.0, 18.0), rtol=1e-6)
    second, _ = jax.jit(update)(first, rollout(first=8.0), jax.random.key(1))
    drawn = jax.tree.map(lambda a, b: np.asarray(a - b), second.params, first.params)
    assert float(second.replay.buffer.beta) == 1.5
    np.testing.assert_allclose(drawn["weight"], (np.minimum(10 + drawn["reward"], 17) / 10) ** -1.5, rtol=1e-4)
    assert drawn["weight"].min() < 0.6


def mid_rollout():
    """8 steps of one environment: cut off at step 2, terminated at step 5; next_obs of step t is 100 + t."""
    time = jnp.arange(8.0)[:, None]
    return Transition(
        time[..., None], time.astype(jnp.int32), 2.0**time, time == 5, time == 2, time[..., None] + 100.0
    )  # fmt: skip


# start: reward, discount, next_obs, with n = 3 and γ = 1/2
BY_HAND = {
    0: (1 + 1 + 1, 1 / 8, 102),
    1: (2 + 2, 1 / 4, 102),
    2: (4, 1 / 2, 102),
    3: (8 + 8 + 8, 0, None),
    4: (16 + 16, 0, None),
    5: (32, 0, None),
}


@pytest.mark.parametrize(("n_step", "replay"), [(1, "uniform"), (3, "prioritized")])
def test_batches_by_hand(replay, n_step):
    buffer = off_policy.buffer(dqn.Config(capacity=8, batch_size=64, n_step=n_step, replay=replay))

    @jax.jit
    def draw(key):
        state = buffer.add(buffer.init(EXAMPLE, 1), mid_rollout())
        return batches.n_step_batch(buffer.sample(state, key), 0.5)

    batch = draw(jax.random.key(0))
    assert batch.obs.shape == (64, 1)
    np.testing.assert_allclose(batch.weight, 1.0)
    assert set(np.asarray(batch.action)) == (set(range(8)) if n_step == 1 else set(range(6)))
    for obs, action, reward, discount, next_obs, _ in zip(*map(np.asarray, batch), strict=True):
        start = int(obs[0])
        assert action == start
        one = (2.0**start, 0.0 if start == 5 else 0.5, 100 + start)
        expected = BY_HAND[start] if n_step == 3 else one
        np.testing.assert_allclose((reward, discount), expected[:2])
        assert discount == 0 or next_obs[0] == expected[2]


@pytest.mark.parametrize("windows", [False, True])
def test_what_was_not_drawn_weighs_nothing(windows):
    item = jax.tree.map(lambda x: np.asarray(x)[:3, 0], mid_rollout())
    mask = np.array([True, False, True])
    if windows:
        item = jax.tree.map(lambda x: np.stack([x, x], axis=1), item)
        mask = np.stack([mask, mask & [True, False, False]], axis=1)
    batch = batches.n_step_batch(Sample(item, (), jnp.full(3, 0.5), jnp.asarray(mask)), 0.9)
    np.testing.assert_array_equal(batch.weight, [0.5, 0.0, 0.5])

"""Card probes: returns of the best policy and of random actions, and decks whose cards are all shown once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from suite_stand_ins import play

from rlkit import envs

EPISODES = 64


def played(name, **kwargs):
    """Play whole episodes by random actions: -> suits [E, N], rewards [E, N - 1], actions, truncated."""
    env, params = envs.make(name, **kwargs)
    episodes = jax.jit(jax.vmap(lambda key: play(env, params, key, env.length)))
    first, steps = jax.device_get(episodes(jax.random.split(jax.random.key(0), EPISODES)))
    _, _, action, reward, terminated, truncated, final = steps
    obs = np.concatenate([first[:, None], final], 1)
    assert (obs.sum(-1) == 1).all()
    return obs.argmax(-1), reward, action, truncated & ~terminated


@pytest.mark.parametrize(
    ("name", "kwargs", "decks", "back"),
    [
        ("Probe-RepeatFirst", {}, 1, None),
        ("Probe-RepeatPrevious", {}, 1, 4),
        pytest.param("Probe-RepeatFirst", {"num_decks": 8}, 8, None, marks=pytest.mark.slow),
        pytest.param("Probe-RepeatPrevious", {"num_decks": 2, "k": 32}, 2, 32, marks=pytest.mark.slow),
    ],
)
def test_rewards_are_those_of_an_earlier_card(name, kwargs, decks, back):
    suits, reward, action, truncated = played(name, **kwargs)
    assert suits.shape == (EPISODES, 52 * decks)
    for suit in range(4):
        np.testing.assert_array_equal((suits == suit).sum(1), 13 * decks)
    assert not (suits == suits[0]).all()
    steps = 52 * decks - 1
    skipped = 0 if back is None else back - 1
    right = suits[:, :1] if back is None else suits[:, : steps - skipped]
    np.testing.assert_array_equal(reward[:, :skipped], 0)
    expected = np.where(action[:, skipped:] == right, 1, -1) / (steps - skipped)
    np.testing.assert_allclose(reward[:, skipped:], expected, rtol=1e-6)
    np.testing.assert_allclose(np.abs(reward).sum(1), 1, rtol=1e-5)  # of the best policy
    np.testing.assert_allclose(reward.sum(1).mean(), -0.5, atol=0.06)  # of random actions; four deviations
    np.testing.assert_array_equal(truncated, np.broadcast_to(np.arange(steps) == steps - 1, truncated.shape))
    for suit in range(4):  # each is as likely at every place
        counts = (suits == suit).sum(0)
        assert 1 < counts.min() < counts.max() < 34  # of 64, with 16 expected


def test_an_episode_after_another_begins_with_a_new_deck():
    env, params = envs.make("Probe-RepeatPrevious", k=2)
    _, state = env.reset(jax.random.key(0), params)
    state = state.replace(time=jnp.int32(env.length - 1), cue=state.cue.replace(left=jnp.array([1.0, 0, 0, 0])))
    obs, state, *_, info = env.step(jax.random.key(1), state, jnp.int32(0), params)
    assert info["final_observation"].argmax() == 0
    assert obs.argmax() == state.cue.seen[-1]
    assert state.cue.left.sum() == 51
    assert state.time == 0


@pytest.mark.parametrize("name", ["Probe-RepeatFirst", "Probe-RepeatPrevious"])
def test_card_probes_keep_the_contract(name):
    envs.check(*envs.make(name), jax.random.key(0))


def test_a_card_that_no_episode_reaches():
    with mistake("k=52 must", "51"):
        envs.make("Probe-RepeatPrevious", k=52)
    with mistake("num_decks=0 must", "at least 1"):
        envs.make("Probe-RepeatFirst", num_decks=0)

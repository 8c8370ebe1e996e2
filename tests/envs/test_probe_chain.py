"""Probe-Chain: its rules, the best return, and that random actions do not get to its end."""

import jax
import jax.numpy as jnp
import numpy as np
from mistakes import mistake
from suite_stand_ins import play_numpy

from rlkit import envs


def played(policy, length, episodes=2):
    """Play episodes, one after the other, by `policy(obs, key)`: -> rewards and places after steps, [E, T]."""
    env, params = envs.make("Probe-Chain", length=length)
    _, (obs, _, _, reward, terminated, truncated, final) = play_numpy(env, params, episodes * length, policy)
    ended = terminated & ~truncated
    np.testing.assert_array_equal(ended, np.arange(1, len(ended) + 1) % length == 0)
    assert (obs[ended].argmax(-1) == 0).all()
    assert (final.sum(-1) == 1).all()
    return (x.reshape(episodes, length) for x in (reward, final.argmax(-1)))


def directions(length):
    """[length] the action that moves right at each place."""
    env, params = envs.make("Probe-Chain", length=length)
    found = []
    _, state = env.reset(jax.random.key(0), params)
    for place in range(length):
        after = [
            env.step(jax.random.key(0), state.replace(cue=jnp.float32(place)), jnp.int32(action), params)[1].cue
            for action in range(2)
        ]
        assert sorted(map(int, after)) == [max(place - 1, 0), place + 1]
        found.append(int(np.argmax(after)))
    return np.array(found)


def test_only_steps_to_the_right_alone_reach_the_end():
    right = directions(12)
    assert 0 < right.sum() < 12  # neither action is the right one everywhere
    best = lambda obs, key: jnp.asarray(right)[jnp.minimum(obs.argmax(-1), 11)]  # noqa: E731
    reward, places = played(best, 12)
    np.testing.assert_array_equal(places, np.broadcast_to(np.arange(1, 13), (2, 12)))
    np.testing.assert_allclose(reward[:, :-1], -0.01 / 12, rtol=1e-6)
    np.testing.assert_allclose(reward.sum(1), 0.99, rtol=1e-6)
    reward, places = played(lambda obs, key: 1 - best(obs, key), 12)
    np.testing.assert_array_equal(places, 0)
    np.testing.assert_array_equal(reward, 0)


def test_random_actions_do_not_reach_the_end():
    reward, places = played(lambda obs, key: jax.random.randint(key, (), 0, 2), 40, episodes=200)
    assert places.max() < 30
    np.testing.assert_allclose(reward.sum(1), -0.005, atol=0.004)


def test_the_chain_keeps_the_contract():
    envs.check(*envs.make("Probe-Chain"), jax.random.key(0))
    with mistake("length=1 must", "at least 2"):
        envs.make("Probe-Chain", length=1)

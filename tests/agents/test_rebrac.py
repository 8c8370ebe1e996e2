"""rlkit.agents.rebrac: its two losses by hand, the next actions of its windows, and the networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import BOX, OBS, B, example, hand_made, unit

from rlkit.agents import rebrac
from rlkit.types import Transition


@pytest.fixture(scope="module")
def made():
    config = rebrac.Config(hidden_sizes=(8,), capacity=512, batch_size=512)
    agent = rebrac.make(config, OBS, BOX)
    hyper = rebrac.Hyper(actor_bc=0.3, critic_bc=0.2, target_noise=0.0, gamma=0.9)
    return agent, jax.jit(agent.init, static_argnums=3)(hyper, jax.random.key(0), example(OBS, BOX), 1)


@pytest.fixture(scope="module")
def batch():
    next_action = np.random.default_rng(1).uniform(BOX.low, BOX.high, (B, 2)).astype(np.float32)
    transitions = hand_made()._replace(discount=np.float32([0.9, 0.9, 0.0, 0.9, 0.9, 0.9]))
    return rebrac.Batch(transitions, next_action, np.array([True, True, False, True, False, True]))


def test_the_critics_are_penalized_by_the_distance_from_the_next_action(made, batch):
    agent, state = made
    networks, steps = agent.static.networks, batch.transitions
    act, rate = jax.jit(networks.policy.apply), jax.jit(networks.critics.apply)
    of_critics = jax.jit(partial(rebrac.critic_loss, agent.static))
    loss, (_, priority, _) = of_critics(state.params["critics"], state, batch, jax.random.key(1))
    action = np.tanh(act(state.target_params["policy"], (), steps.next_obs)[0])
    later = np.asarray(rate(state.target_params["critics"], (), steps.next_obs, action)[0]).min(0)
    penalty = 0.2 * np.square(action - unit(batch.next_action)).sum(-1) * batch.is_followed
    target = steps.reward + np.where(steps.discount == 0, 0.0, steps.discount * (later - penalty))
    error = np.asarray(rate(state.params["critics"], (), steps.obs, unit(steps.action))[0]) - target
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(steps.weight * (error**2).sum(0)) / 2, rtol=1e-4)


def test_the_policy_is_held_near_the_data(made, batch):
    agent, state = made
    networks, steps = agent.static.networks, batch.transitions
    act, rate = jax.jit(networks.policy.apply), jax.jit(networks.critics.apply)
    critics = state.params["critics"], state.stats["critics"]
    arguments = state.params["policy"], critics, state, batch, jax.random.key(1)
    loss, _ = jax.jit(partial(rebrac.policy_loss, agent.static))(*arguments)
    action = np.tanh(act(state.params["policy"], (), steps.obs)[0])
    q = np.asarray(rate(state.params["critics"], (), steps.obs, action)[0]).min(0)
    distance = np.square(action - unit(steps.action)).sum(-1).mean()
    np.testing.assert_allclose(loss, 0.3 * distance - q.mean() / np.abs(q).mean(), rtol=1e-4)


def test_an_action_is_followed_by_the_next_of_its_episode(made):
    """Eight steps of three episodes, numbered, so that an observation tells the action that follows it."""
    agent, state = made
    number, ends = np.arange(8.0, dtype=np.float32)[:, None], np.isin(np.arange(8), [2, 5])[:, None]
    obs, action = np.repeat(number[..., None], 3, -1), np.repeat(number[..., None], 2, -1)

    @jax.jit
    def draw(state, key):
        state = agent.add(state, Transition(obs, action, number, ends, ends & False, obs + 1))
        return rebrac.batch_of(agent.static.buffer.sample(state.replay.buffer, key), jnp.float32(0.9))

    drawn = draw(state, jax.random.key(0))
    first = np.asarray(drawn.transitions.obs)[:, 0]
    assert set(first) == set(range(7))  # a window of the newest step is not complete
    followed = np.asarray(drawn.is_followed)
    np.testing.assert_array_equal(followed, ~np.isin(first, [2, 5]))
    np.testing.assert_array_equal(np.asarray(drawn.next_action)[:, 0][followed], first[followed] + 1)
    np.testing.assert_array_equal(np.asarray(drawn.transitions.discount) == 0, np.isin(first, [2, 5]))
    np.testing.assert_array_equal(drawn.transitions.reward, first)


def test_only_the_critics_have_layer_normalization(made):
    _, state = made
    names = {part: str(jax.tree_util.tree_leaves_with_path(tree)) for part, tree in state.params.items()}
    assert "LayerNorm" in names["critics"]
    assert "LayerNorm" not in names["policy"]

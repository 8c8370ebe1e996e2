"""rlkit.agents.dqn, c51, qrdqn and pqn: losses and targets against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from q_agents import MASKED, OBS, SMALL, B, hand_made, linear, start
from scipy.special import xlogy

from rlkit.agents import c51, dqn, pqn, qrdqn
from rlkit.spaces import Discrete
from rlkit.types import Transition

BATCH = hand_made()


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def numbers(module, agent, batch, outputs=()):
    """-> loss, priority and gradient of the agent, and the outputs of its two networks in float64."""
    hyper = c51.Hyper(gamma=0.9) if module is c51 else module.Hyper(gamma=0.9, huber_delta=1.0)
    static, state = agent.static, start(agent, hyper, MASKED)
    online_key, target_key = jax.random.split(jax.random.key(12))  # with which `check_that_choices_differ` passes
    online, target = (jax.random.normal(key, (3, 4, *outputs)) for key in (online_key, target_key))
    state = state.replace(params=online, target_params=target)
    grad = jax.jit(jax.value_and_grad(partial(module.loss, static), has_aux=True))
    (loss, (_, priority, _)), gradient = grad(state.params, state, batch, jax.random.key(1))

    def outputs_of(params, obs):
        return (obs["obs"].astype(float) @ np.asarray(params, float).reshape(3, -1)).reshape(B, 4, *outputs)

    q, q_next = outputs_of(state.params, batch.obs), outputs_of(state.params, batch.next_obs)
    return loss, priority, gradient, q, q_next, outputs_of(target, batch.next_obs)


def chosen(values, batch):
    """The best legal actions [B]; any where the values are not numbers."""
    return np.argmax(np.where(batch.next_obs["action_mask"], np.nan_to_num(values), -np.inf), axis=-1)


def check_that_choices_differ(next_q, q_next, batch):
    """Between the networks, and with and without a mask, where the next value counts; else a test could not fail."""
    counts = batch.discount > 0
    assert np.any((chosen(q_next, batch) != chosen(next_q, batch))[counts])
    for values in (next_q, q_next):
        assert np.any((np.argmax(values, -1) != chosen(values, batch))[counts])


@pytest.mark.parametrize("double", [False, True])
def test_the_loss_of_dqn_by_hand(double):
    batch, rows = BATCH, np.arange(B)
    agent = dqn.make(dqn.Config(**SMALL, double=double), MASKED, Discrete(4), linear())
    loss, priority, gradient, q, q_next, next_q = numbers(dqn, agent, batch)
    action = chosen(q_next if double else next_q, batch)
    check_that_choices_differ(next_q, q_next, batch)
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * next_q[rows, action])
    error = target - q[rows, batch.action]
    size = np.abs(error)
    np.testing.assert_allclose(priority, size, rtol=1e-5)
    huber = np.where(size <= 1, error**2 / 2, size - 0.5)
    np.testing.assert_allclose(loss, np.mean(batch.weight * huber), rtol=1e-5)
    expected = np.zeros((3, 4))
    for b in range(B):
        expected[:, batch.action[b]] -= batch.weight[b] * np.clip(error[b], -1, 1) * batch.obs["obs"][b] / B
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.mark.parametrize("double", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_loss_of_c51_by_hand(double):
    batch, rows = BATCH, np.arange(B)
    config = c51.Config(**SMALL, num_atoms=5, v_min=-2.0, v_max=2.0, double=double)
    agent = c51.make(config, MASKED, Discrete(4), linear((5,)))
    loss, priority, gradient, q, q_next, next_q = numbers(c51, agent, batch, (5,))
    atoms = np.linspace(-2, 2, 5)
    means = [softmax(x) @ atoms for x in (next_q, q_next)]
    check_that_choices_differ(*means, batch)
    probs = softmax(np.nan_to_num(next_q))[rows, chosen(means[double], batch)]
    expected, divergence = np.zeros(B), np.zeros(B)
    for b in range(B):
        target = np.zeros(5)
        for j in range(5):
            place = (np.clip(batch.reward[b] + batch.discount[b] * atoms[j], -2, 2) + 2) / 1.0
            low = min(int(place), 3)
            target[low] += probs[b, j] * (low + 1 - place)
            target[low + 1] += probs[b, j] * (place - low)
        expected[b] = -np.sum(target * np.log(softmax(q[b, batch.action[b]])))
        divergence[b] = expected[b] + np.sum(xlogy(target, target))
    np.testing.assert_allclose(priority, divergence, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, np.mean(batch.weight * expected), rtol=1e-4)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("double", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_loss_of_qrdqn_by_hand(double):
    batch, rows = BATCH, np.arange(B)
    agent = qrdqn.make(qrdqn.Config(**SMALL, num_quantiles=3, double=double), MASKED, Discrete(4), linear((3,)))
    loss, priority, gradient, q, q_next, next_q = numbers(qrdqn, agent, batch, (3,))
    means = next_q.mean(-1), q_next.mean(-1)
    check_that_choices_differ(*means, batch)
    later = next_q[rows, chosen(means[double], batch)]
    expected = np.zeros(B)
    for b in range(B):
        for i, tau in enumerate((1 / 6, 1 / 2, 5 / 6)):
            for j in range(3):
                target = batch.reward[b] + (batch.discount[b] * later[b, j] if batch.discount[b] else 0.0)
                u = target - q[b, batch.action[b], i]
                expected[b] += abs(tau - (u < 0)) * (u * u / 2 if abs(u) <= 1 else abs(u) - 0.5) / 3
    np.testing.assert_allclose(priority, expected, rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(batch.weight * expected), rtol=1e-4)
    assert np.isfinite(gradient).all()


def test_the_targets_of_pqn_by_hand():
    rng = np.random.default_rng(1)
    obs = rng.normal(size=(6, 2, 3)).astype(np.float32)
    mask = rng.random((6, 2, 4)) < 0.6
    mask[..., 0] = True
    done = rng.random((2, 5, 2)) < 0.25
    seen = {"action_mask": mask, "obs": obs}
    before, after = (jax.tree.map(lambda x, i=i: x[i : 5 + i], seen) for i in (0, 1))
    rollout = Transition(before, np.zeros((5, 2), np.int32), obs[:5, :, 0], done[0], done[1], after)
    agent = pqn.make(pqn.Config(num_minibatches=1, chunk_size=3), MASKED, Discrete(4), linear())
    state = start(agent, pqn.Hyper(gamma=0.9, q_lambda=0.6), MASKED)
    static = agent.static
    found = jax.jit(partial(pqn.targets, static))(state, rollout)
    best = np.where(mask[1:], obs[1:].astype(float) @ np.asarray(state.params), -np.inf).max(-1)
    expected, later = np.zeros((5, 2)), best[-1]
    for t in reversed(range(5)):
        mixed = 0.4 * best[t] + 0.6 * np.where(done[1, t] | (t == 4), best[t], later)
        later = expected[t] = obs[t, :, 0] + 0.9 * np.where(done[0, t], 0.0, mixed)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), pqn.Batch(before, rollout.action, found))
    loss, _ = jax.jit(partial(pqn.loss, static))(state.params, (), state, batch, jax.random.key(0))
    values = (obs[:5].reshape(-1, 3) @ np.asarray(state.params))[:, 0]
    np.testing.assert_allclose(loss, np.mean((values - expected.reshape(-1)) ** 2) / 2, rtol=1e-5)


def test_the_learning_rate_of_pqn_is_of_the_steps_before():
    agent = pqn.make(pqn.Config(num_minibatches=1, learning_rate_schedule="linear"), OBS, Discrete(4), linear())
    state = start(agent, pqn.Hyper(learning_rate=0.5, schedule_steps=32.0))
    obs, zero = jnp.ones((2, 4, 3)), jnp.zeros((2, 4))
    rollout, rates = Transition(obs, zero.astype(jnp.int32), zero, zero > 0, zero > 0, obs), []
    for _ in range(4):
        state, metrics = jax.jit(agent.update)(state, rollout, jax.random.key(0))
        rates.append(metrics["learning_rate"])
    np.testing.assert_allclose(rates, [0.5, 0.375, 0.25, 0.125], rtol=1e-6)


def test_pqn_bootstraps_from_an_observation_without_a_legal_action():
    """Some environments zero the mask of their last observation, also where a time limit cut the episode."""
    obs = np.ones((1, 2, 3), np.float32)
    seen, last = ({"action_mask": np.full((1, 2, 4), legal), "obs": obs} for legal in (True, False))
    none, cut = np.zeros((1, 2), bool), np.ones((1, 2), bool)
    rollout = Transition(seen, np.zeros((1, 2), np.int32), obs[..., 0], none, cut, last)
    agent = pqn.make(pqn.Config(num_minibatches=1), MASKED, Discrete(4), linear())
    found = jax.jit(partial(pqn.targets, agent.static))(start(agent, pqn.Hyper(), MASKED), rollout)
    assert np.abs(found).max() < 1e3

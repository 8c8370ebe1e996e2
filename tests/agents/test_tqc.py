"""rlkit.agents.tqc: the truncated target and the losses against slow loops, the quantiles it learns, and refusals."""

from functools import partial
from itertools import product
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from sac_batches import BOX, OBS, SMALL, B, hand_made, losses, make, squashed, unit

from rlkit.agents import tqc
from rlkit.agents.common import q_critics
from rlkit.agents.common.off_policy import Schedules
from rlkit.agents.common.recurrent import sequences
from rlkit.spaces import Box
from rlkit.types import ConfigError, Sample, Transition


def test_the_greatest_quantiles_of_all_critics_together_are_dropped():
    """Two critics with three quantiles each: with one dropped for each, all of the first critic's may be kept."""
    quantiles = np.array([[[3.0, 1.0, 2.0], [9.0, 0.0, 5.0]], [[4.0, 8.0, 7.0], [1.0, 6.0, 2.0]]])  # [K, B, M]
    kept = [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 5.0]]
    np.testing.assert_array_equal(tqc.truncate(jnp.float32(quantiles), 1), kept)
    np.testing.assert_array_equal(tqc.truncate(jnp.float32(quantiles), 2), [row[:2] for row in kept])
    np.testing.assert_array_equal(tqc.truncate(jnp.float32(quantiles), 0), [[1, 2, 3, 4, 7, 8], [0, 1, 2, 5, 6, 9]])


def test_the_losses_against_a_slow_loop():
    num_critics, num_quantiles, drop = 3, 4, 1
    settings = {"num_critics": num_critics, "num_quantiles": num_quantiles, "drop_quantiles": drop}
    _, static, state = make(hyper={"temperature": 0.3, "target_entropy": -1.5}, module=tqc, **settings)
    batch, key, policy, critics = (
        hand_made(),
        jax.random.key(4),
        jax.jit(static.networks.policy.apply),
        jax.jit(static.networks.critics.apply),
    )
    keys = jax.random.split(key)

    def sampled(obs, key):
        return squashed(*(np.asarray(x, float) for x in policy(state.params["policy"], (), obs)[0]), key)

    ahead, log_prob = sampled(batch.next_obs, keys[0])
    following = np.asarray(critics(state.target_params, (), batch.next_obs, ahead)[0], float)
    quantiles = np.asarray(critics(state.params["critics"], (), batch.obs, unit(batch.action))[0], float)
    assert quantiles.shape == following.shape == (num_critics, B, num_quantiles)
    critic_loss, priority = 0.0, np.zeros(B)
    for b in range(B):
        pooled = sorted(following[k, b, m] for k, m in np.ndindex(num_critics, num_quantiles))
        kept = pooled[: num_critics * num_quantiles - drop * num_critics]
        ends = batch.discount[b] == 0
        target = [batch.reward[b] + (0 if ends else batch.discount[b] * (z - 0.3 * log_prob[b])) for z in kept]
        for k, m in np.ndindex(num_critics, num_quantiles):
            for y in target:
                error = y - quantiles[k, b, m]
                huber = error**2 / 2 if abs(error) < 1 else abs(error) - 0.5
                share = abs((m + 0.5) / num_quantiles - (error < 0)) / num_quantiles / len(target)
                critic_loss += batch.weight[b] * share * huber / B
        priority[b] = np.mean([abs(quantiles[k, b].mean() - np.mean(target)) for k in range(num_critics)])
    now, log_prob = sampled(batch.obs, keys[1])
    value = np.asarray(critics(state.params["critics"], (), batch.obs, now)[0]).mean((0, 2))
    policy_loss = np.mean(0.3 * log_prob - value)
    temperature_loss = np.log(0.3) * (np.mean(-log_prob) + 3.0)

    total, found_priority, metrics = losses(static, state, batch, key, tqc)
    np.testing.assert_allclose(found_priority, priority, rtol=1e-4)
    found = metrics["critic_loss"], metrics["policy_loss"], metrics["q"], total
    expected = critic_loss, policy_loss, value.mean(), critic_loss + policy_loss + temperature_loss
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_loss_of_a_sequence_against_a_slow_loop():
    """Of a stream whose episode ends in its third of five rows; memories add up the observations of an episode."""
    settings = {"recurrent": "gru", "burn_in": 1, "unroll_len": 4, "n_step": 2, "num_quantiles": 3, "drop_quantiles": 1}

    def policy(params, obs, memory):  # of actions of 0 at the next observations
        return jnp.zeros_like(obs), jnp.full_like(obs, -20.0), memory + obs

    def critics(params, obs, action, memory):
        total = memory + obs
        return jnp.einsum("...d,km->k...m", total + action, params), total

    start, space = np.zeros(1, np.float32), Box(-1, 1, (1,))
    networks = {"policy": policy, "critics": critics}
    networks = {name: (lambda key, *_: jnp.zeros((2, 3)), apply, start) for name, apply in networks.items()}
    static = tqc.make(tqc.Config(**(SMALL | settings)), space, space, networks).static
    params, target = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)  # [K, M]
    state = SimpleNamespace(
        params={"policy": (), "critics": params, "log_temperature": -jnp.inf},
        stats={"policy": (), "critics": ()},
        target_params=target,
        target_stats=(),
        normalizer=SimpleNamespace(obs=()),
        hyper=SimpleNamespace(gamma=0.9),
    )
    obs, next_obs, action, reward = np.random.default_rng(1).uniform(-1, 1, (4, 5)).astype(np.float32)
    ends = np.arange(5) == 2
    column = lambda x: x[None, :, None]  # noqa: E731
    memory = sequences.Memory(np.full((1, 5, 1), 0.5, np.float32), np.full((1, 5, 1), 0.5, np.float32))
    flags = ends[None], np.zeros((1, 5), bool)
    item = Transition(column(obs), column(action), reward[None], *flags, column(next_obs), memory)
    sample = Sample(item, (), np.float32([0.7]), np.ones((1, 5), bool))

    @jax.jit
    def compiled(sample):
        rows = sequences.rows(static, state, sample)
        return sequences.critic_loss(tqc.critic_loss, static, state.params, state, rows, jax.random.key(0))

    found, (_, priority, _) = compiled(sample)

    before = np.array([0.5, 0.5 + obs[0], 0.5 + obs[0] + obs[1], 0.0, obs[3]])
    kept = [sorted((target * (before[t] + obs[t] + next_obs[t])).ravel())[:4] for t in range(5)]
    loss, error = 0.0, []
    for t in range(1, 5):
        if ends[t]:
            targets = [reward[t]] * 4
        elif t == 4:  # the sequence ends
            targets = [reward[t] + 0.9 * z for z in kept[t]]
        else:
            targets = [reward[t] + 0.9 * (reward[t + 1] + 0.9 * (0 if ends[t + 1] else z)) for z in kept[t + 1]]
        quantiles = params * (before[t] + obs[t] + action[t])
        for (k, m), y in product(np.ndindex(2, 3), targets):
            u = y - quantiles[k, m]
            huber = u**2 / 2 if abs(u) < 1 else abs(u) - 0.5
            loss += 0.7 * abs((m + 0.5) / 3 - (u < 0)) * huber / 3 / 4 / 4
        error.append(np.mean([abs(quantiles[k].mean() - np.mean(targets)) for k in range(2)]))
    np.testing.assert_allclose(found, loss, rtol=1e-5)
    np.testing.assert_allclose(priority, [np.mean(error)], rtol=1e-5)


@pytest.mark.slow
def test_the_critics_learn_the_quantiles_of_a_random_reward():
    """Of a reward that is uniform over 0 to 3, in an episode of one step: an eighth, three eighths and so on."""
    num_rewards = 64
    settings = {"num_quantiles": 4, "hidden_sizes": (32,), "batch_size": num_rewards, "capacity": 256}
    _, static, state = make(module=tqc, **settings)
    obs, action = jnp.ones((num_rewards, 3)), jnp.ones((num_rewards, 2))
    reward, true = jnp.linspace(0.0, 3.0, num_rewards), jnp.ones(num_rewards, bool)
    sample = Sample(Transition(obs, action, reward, true, ~true, obs), (), jnp.ones(num_rewards), true)
    schedules = Schedules(jnp.float32(0.003), jnp.array(True))

    @jax.jit
    def learned(state):
        def step(state, key):
            return tqc.gradient_step(static, state, sample, schedules, key)[0], None

        state = jax.lax.scan(step, state, jax.random.split(jax.random.key(0), 2000))[0]
        action_unit = q_critics.normalize_action(static.networks, action[:1])
        return static.networks.critics(state.params["critics"], (), obs[:1], action_unit)[0][:, 0]

    found = learned(state.replace(replay=()))
    np.testing.assert_allclose(found, np.tile([0.5, 1.2, 1.8, 2.5], (2, 1)), atol=0.25)
    assert np.all(np.diff(found, axis=-1) > 0.3)


def test_settings_that_do_not_fit():
    with mistake("drop_quantiles=2 must be less than num_quantiles=2", "try 1"):
        tqc.make(tqc.Config(**(SMALL | {"num_quantiles": 2, "drop_quantiles": 2})), OBS, BOX)


def test_the_users_critics_give_quantiles():
    def critics(num_quantiles):
        def apply(params, obs, action):
            features = jnp.concatenate([obs, action], axis=-1) @ params
            return jnp.moveaxis(features.reshape(*obs.shape[:-1], 2, num_quantiles), -2, 0)

        return (lambda key, obs, action: 0.1 * jax.random.normal(key, (5, 2 * num_quantiles))), apply

    made = partial(tqc.make, tqc.Config(**SMALL, num_quantiles=7), OBS, BOX)
    assert made({"critics": critics(7)}).static.networks.critics.init(jax.random.key(0), jnp.ones(3), jnp.ones(2))
    with pytest.raises(ConfigError, match=r"critics must return Q of shapes \[2, 7\] for one .*, and .* \[2, 6\]"):
        made({"critics": critics(6)})

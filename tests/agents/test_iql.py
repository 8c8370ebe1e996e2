"""rlkit.agents.iql: its three losses by hand; and that iql and td3_bc learn from a dataset alone."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import BOX, MASKED, OBS, SMALL, B, drawn, example, hand_made, unit

from rlkit import agents, envs, training
from rlkit.agents import iql
from rlkit.spaces import Discrete
from rlkit.types import Transition

HYPER = iql.Hyper(expectile=0.8, advantage_weight=1.5)


@cache
def make(box):
    """-> static, state, with drawn weights, for those at the start make all actions alike."""
    spaces = (OBS, BOX) if box else (MASKED, Discrete(4))
    agent = iql.make(iql.Config(**SMALL, normalize_obs=False), *spaces)
    state = jax.jit(agent.init, static_argnums=3)(HYPER, jax.random.key(0), example(*spaces), 4)
    params = drawn(state.params, scale=1.0, seed=5)
    target = jax.tree.map(lambda x: x + np.float32(0.2), params["critics"])
    return agent.static, state.replace(params=params, target_params=target)


def losses(static, params, state, batch):
    total, (_, priority, metrics) = iql.loss(static, params, state, batch, jax.random.key(0))
    return {name: metrics[name + "_loss"] for name in ("value", "critic", "policy")} | {"total": total}, priority


@pytest.mark.parametrize("box", [True, False])
def test_the_losses_by_hand(box):
    (static, state), batch = make(box), hand_made(masked=not box, box=box)
    rows, networks = np.arange(B), static.networks
    policy, critics, value = (jax.jit(part.apply) for part in (networks.policy, networks.critics, networks.value))

    def rated(params):
        if box:
            return np.asarray(critics(params, (), batch.obs, unit(batch.action))[0], float)
        return np.asarray(critics(params, (), batch.obs)[0], float)[:, rows, batch.action]

    def rate_obs(state, obs):
        return np.asarray(value(state.params["value"], (), obs)[0])

    advantage = rated(state.target_params).min(0) - rate_obs(state, batch.obs)
    middle = np.float32(np.median(advantage))  # moved there, values are too high for some
    shifted = jax.tree.map(lambda x: np.asarray(x) + middle if x.shape == (1,) else x, state.params["value"])
    state = state.replace(params=state.params | {"value": shifted})
    found, priority = jax.jit(partial(losses, static))(state.params, state, batch)
    advantage = rated(state.target_params).min(0) - rate_obs(state, batch.obs)
    assert (advantage < 0).sum() == (advantage > 0).sum() == B / 2
    value_loss = np.mean(batch.weight * np.where(advantage < 0, 0.2, 0.8) * advantage**2)
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * rate_obs(state, batch.next_obs))
    error = rated(state.params["critics"]) - target
    critic_loss = np.mean(batch.weight * (error**2).sum(0)) / 2
    output = policy(state.params["policy"], (), batch.obs)[0]
    if box:
        loc, log_std = (np.asarray(x, float) for x in output)
        assert np.ptp(log_std, axis=0).max() == 0  # the same for all observations
        z = (unit(batch.action) - np.tanh(loc)) / np.exp(log_std)
        log_prob = (-(z**2) / 2 - log_std - np.log(2 * np.pi) / 2).sum(-1)
    else:
        e = np.where(batch.obs["action_mask"], np.exp(np.asarray(output, float)), 0.0)
        log_prob = np.log(e[rows, batch.action] / e.sum(-1))
    preference = np.minimum(np.exp(1.5 * advantage), 100.0)
    policy_loss = -np.mean(batch.weight * preference * log_prob)
    total = value_loss + critic_loss + policy_loss
    expected = {"value": value_loss, "critic": critic_loss, "policy": policy_loss, "total": total}
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)


def test_the_gradients_of_the_three_losses_do_not_meet():
    (static, state), batch = make(True), hand_made()
    batch = batch._replace(next_obs=np.nan_to_num(batch.next_obs))
    gradients = jax.jit(jax.jacrev(lambda params: losses(static, params, state, batch)[0]))(state.params)
    owners = {"value": "value", "critic": "critics", "policy": "policy"}
    for of, owner in owners.items():
        for name, part in gradients[of].items():
            sizes = [np.abs(x).max() for x in jax.tree.leaves(part)]
            assert min(sizes) > 1e-4 if name == owner else max(sizes) == 0, (of, name)


def test_the_weight_of_a_sample_is_bounded():
    """However much better an action is than expected, a sample weighs 100 at most, and nothing overflows."""
    (static, state), batch = make(True), hand_made()
    loss = jax.jit(lambda state: losses(static, state.params, state, batch)[0]["policy"])
    far, farther = (state.replace(hyper=state.hyper.replace(advantage_weight=jnp.float32(w))) for w in (1e6, 1e30))
    assert np.isfinite(loss(far))
    np.testing.assert_allclose(loss(far), loss(farther))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "hyper"), [("iql", {"advantage_weight": 10.0}), ("td3_bc", {})])
def test_a_policy_learned_from_random_actions_is_better_than_they_are(name, hyper):
    """The dataset's mean return is 1 - 4/3 - 1/3 = -2/3; the best is 1."""
    env, params = envs.make("Probe-Continuous")
    module = agents.get(name)
    config = module.Config(hidden_sizes=(32,), capacity=4096, batch_size=128, replay_ratio=0.25)
    agent = module.make(config, env.observation_space(params), env.action_space(params))
    rng = np.random.default_rng(0)
    obs, action = (rng.uniform(-x, x, (512, 8, 1)).astype(np.float32) for x in (1, 2))
    ends, reward = np.ones((512, 8), bool), 1 - (action - obs)[..., 0] ** 2
    assert abs(reward.mean() + 2 / 3) < 0.1
    data = Transition(obs, action, reward, ends, ~ends, obs)

    @jax.jit
    def run(key):
        example = jax.tree.map(lambda x: jnp.zeros(x.shape[2:], x.dtype), data)
        state = agent.init(module.Hyper(learning_rate=3e-3, tau=0.05, **hyper), key, example, 8)
        state = agent.add(state, jax.tree.map(jnp.asarray, data))
        state, metrics = agent.learn(state, key, 4000)
        result = training.evaluate(agent, env, params, agent.actor(state), key, num_envs=64, max_steps=2)
        return state, metrics, result.returns.mean()

    state, metrics, score = run(jax.random.key(0))
    assert score > 0.8
    assert int(metrics["buffer_size"]) == 4096
    assert int(state.replay.num_steps) == 4000


@pytest.mark.parametrize("log_std", [-8.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_deviation_is_bounded_and_comes_back(log_std):
    """Beyond a bound the deviation is that of the bound, and the likelihood's gradient leads back inside."""
    (static, state), batch = make(True), hand_made()
    batch = batch._replace(next_obs=np.nan_to_num(batch.next_obs))
    policy = jax.tree_util.tree_map_with_path(
        lambda path, x: np.full_like(x, log_std) if "log_std" in jax.tree_util.keystr(path) else x,
        state.params["policy"],
    )
    params = state.params | {"policy": policy}
    dist = jax.jit(lambda policy: iql.distribution(static, (policy, ()), (), batch.obs)[0])(policy)
    np.testing.assert_allclose(dist.scale, np.exp(np.clip(log_std, -5.0, 2.0)), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda params: losses(static, params, state, batch)[0]["policy"]))(params)
    (moved,) = [
        np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(gradient["policy"])
        if "log_std" in jax.tree_util.keystr(path)
    ]
    assert np.all(moved < 0 if log_std < -5 else moved > 0)

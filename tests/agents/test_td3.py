"""rlkit.agents.td3 and td3_bc: losses by hand, the delayed policy, noise, and what td3 learns."""

from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sac_batches import SMALL, B, hand_made, shares, unit
from sac_batches import make as make_with_weights
from short_trainings import mean_return, trained

from rlkit import envs
from rlkit.agents import ddpg, td3, td3_bc
from rlkit.agents.common import q_critics
from rlkit.agents.common.off_policy import Schedules
from rlkit.types import Sample, Transition


def make(hyper=None, **settings):
    """-> agent, static, state, whose target has a policy too."""
    agent, static, state = make_with_weights(hyper=hyper, module=td3, **settings)
    return agent, static, state.replace(target_params=jax.tree.map(lambda x: x + np.float32(0.1), state.params))


@pytest.mark.parametrize(("settings", "hyper"), [
    ({}, {"target_noise": 1.0, "target_noise_clip": 0.3}),
    pytest.param({"num_critics": 1}, {"target_noise": 0.0}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_loss_of_the_critics_by_hand(settings, hyper):
    _, static, state = make(hyper, **settings)
    key, batch, networks = jax.random.key(4), hand_made(), static.networks
    loss, (_, priority, _) = jax.jit(partial(td3.critic_loss, static))(state.params["critics"], state, batch, key)
    noise = np.asarray(hyper["target_noise"] * jax.random.normal(key, (B, 2)))
    clip = hyper.get("target_noise_clip", 0.5)
    assert not noise.any() or np.abs(noise).max() > clip  # otherwise nothing is clipped
    action = np.tanh(networks.policy.apply(state.target_params["policy"], (), batch.next_obs)[0])
    action = np.clip(action + np.clip(noise, -clip, clip), -1, 1)
    later = np.asarray(networks.critics.apply(state.target_params["critics"], (), batch.next_obs, action)[0]).min(0)
    target = batch.reward + np.where(batch.discount == 0, 0.0, batch.discount * later)
    error = np.asarray(networks.critics.apply(state.params["critics"], (), batch.obs, unit(batch.action))[0]) - target
    np.testing.assert_allclose(priority, np.abs(error).mean(0), rtol=1e-4)
    np.testing.assert_allclose(loss, np.mean(batch.weight * (error**2).sum(0)) / 2, rtol=1e-4)


@pytest.mark.parametrize("cloning", [False, True])
def test_the_loss_of_the_policy_by_hand(cloning):
    _, static, state = make({"bc_alpha": 2.0}, behavior_cloning=cloning)
    batch, networks, key = hand_made(), static.networks, jax.random.key(2)
    loss = jax.jit(jax.value_and_grad(lambda p, c: td3.policy_loss(static, p, (c, ()), state, batch, key)[0], (0, 1)))
    found, (to_policy, _) = loss(state.params["policy"], state.params["critics"])

    def expected(params, size=None):
        action = jnp.tanh(networks.policy.apply(params, (), batch.obs)[0])
        q = networks.critics.apply(state.params["critics"], (), batch.obs, action)[0][0]
        if not cloning:
            return -q.mean()
        scale = 2.0 / (jnp.abs(q).mean() if size is None else size)
        return -scale * q.mean() + jnp.square(action - unit(batch.action)).mean(), jnp.abs(q).mean()

    if cloning:
        value, size = jax.jit(expected)(state.params["policy"])
        gradient = jax.jit(jax.grad(lambda p: expected(p, float(size))[0]))(state.params["policy"])  # λ stands still
    else:
        value, gradient = jax.jit(jax.value_and_grad(expected))(state.params["policy"])
    np.testing.assert_allclose(found, value, rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), to_policy, gradient)


def test_the_loss_of_the_policy_evaluates_one_critic():
    def products(num_critics):
        _, static, state = make(num_critics=num_critics)
        loss = jax.grad(lambda p: td3.policy_loss(static, p, (c, ()), state, hand_made(), jax.random.key(0))[0])
        c = state.params["critics"]
        return str(jax.make_jaxpr(loss)(state.params["policy"])).count("dot_general")

    assert products(1) == products(3) > 0


def gradient_steps(static, state, batch, dues, rate=1e-3):
    """The states before and after each gradient step on one batch, stacked."""
    item = Transition(batch.obs, batch.action, batch.reward, batch.discount == 0, batch.discount < 0, batch.next_obs)
    sample = Sample(item, (), jnp.asarray(batch.weight), jnp.ones(B, bool))

    def body(state, inputs):
        due, key = inputs
        after, *_ = td3.gradient_step(static, state, sample, Schedules(jnp.float32(rate), due), key)
        return after, after

    keys = jax.random.split(jax.random.key(0), len(dues))
    later = jax.jit(lambda s: jax.lax.scan(body, s, (jnp.asarray(dues), keys))[1])(state)
    return jax.tree.map(lambda a, b: np.concatenate([np.asarray(a)[None], b]), state, later)


def moves(tree):
    """Whether anything moved [T] between states stacked along the first axis."""
    return np.any([np.diff(x.astype(float), axis=0).reshape(len(x) - 1, -1).any(1) for x in jax.tree.leaves(tree)], 0)


@pytest.mark.parametrize(("delay", "dues", "targets"), [
    pytest.param(1, [1] * 6, [1] * 6, marks=pytest.mark.slow),
    # due with a step of the policy, between two, at which it is with the next one, and not at all
    (2, [0, 1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0]),
])  # fmt: skip
def test_the_policy_and_the_targets_are_delayed(delay, dues, targets):
    _, static, state = make({"tau": 0.5}, policy_delay=delay)
    states = gradient_steps(static, state, hand_made(), np.array(dues, bool))
    turns = [(i + 1) % delay == 0 for i in range(len(dues))]
    assert moves(states.params["critics"]).all()
    assert moves(states.opt_state["critics"]).all()
    np.testing.assert_array_equal(moves(states.params["policy"]), turns)
    np.testing.assert_array_equal(moves(states.opt_state["policy"]), turns)  # Adam's moments and count stand still
    for part in ("policy", "critics"):
        np.testing.assert_array_equal(moves(states.target_params[part]), np.array(targets, bool))
    moved = jax.tree.map(lambda x, y: (x[1:] + y[:-1]) / 2, states.params, states.target_params)
    at = np.flatnonzero(targets)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[at], y[1:][at], rtol=1e-5), moved, states.target_params)


def test_the_policy_follows_the_critics_after_their_step():
    _, static, state = make(policy_delay=1, optimizer="sgd")
    states = gradient_steps(static, state, hand_made(), np.array([True]), rate=0.1)
    before, after = (jax.tree.map(lambda x, i=i: x[i], states.params) for i in (0, 1))
    gradient = jax.jit(
        jax.grad(lambda p, c: td3.policy_loss(static, p, (c, ()), state, hand_made(), jax.random.key(0))[0])
    )
    expected = jax.tree.map(
        lambda x, g: x - 0.1 * np.asarray(g), before["policy"], gradient(before["policy"], after["critics"])
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), after["policy"], expected)


@pytest.mark.parametrize("correlation", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_acting_noise(correlation):
    """Of the deviation that is asked for, and carried on from step to step; none in the policy."""
    agent, _, state = make({"exploration_noise": 0.1, "noise_correlation": correlation})
    state = state.replace(params=jax.tree.map(np.zeros_like, state.params))  # the policy plays the middle

    @jax.jit
    def run(key):
        def step(memory, key):
            memory, action, _ = agent.act(agent.actor(state), memory, jnp.ones(3), key)
            return memory, action

        return jax.lax.scan(step, jnp.asarray(agent.memory), jax.random.split(key, 8000))[1]

    noise = unit(np.asarray(run(jax.random.key(0))))
    np.testing.assert_allclose(noise.std(0), 0.1, rtol=0.08)
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.012)
    for i in range(2):
        np.testing.assert_allclose(np.corrcoef(noise[1:, i], noise[:-1, i])[0, 1], correlation, atol=0.04)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.08
    greedy = jax.jit(agent.policy)(agent.actor(state), agent.memory, jnp.ones(3), jax.random.key(0))[1]
    np.testing.assert_allclose(greedy, [0.0, 5.0], atol=1e-6)


def test_the_noise_is_standard_from_the_first_step_of_an_episode():
    agent, _, state = make({"exploration_noise": 0.1, "noise_correlation": 0.9})
    act = jax.jit(jax.vmap(agent.act, (None, None, None, 0)))
    memory = act(agent.actor(state), agent.memory, jnp.ones(3), jax.random.split(jax.random.key(0), 4000))[0]
    np.testing.assert_allclose(np.std(memory, axis=0), 1.0, atol=0.05)


def test_actions_keep_their_bounds_and_are_uniform_until_learning_starts():
    agent, _, state = make({"exploration_noise": 3.0}, learning_starts=100)
    before, after = shares(agent, state, (99, 100))  # which also checks the bounds
    np.testing.assert_allclose(before, 0.25, atol=0.03)
    assert (after[:, [0, 3]] > 0.3).all()  # such noise plays the bounds


DDPG = {"num_critics": 1, "policy_delay": 1}


@pytest.mark.thorough
@pytest.mark.parametrize(("settings", "hyper"), [({}, {}), (DDPG, {"target_noise": 0.0, "noise_correlation": 0.9})])
def test_the_best_policy_is_found(settings, hyper):
    env = envs.make("Probe-Continuous")
    many = {"hidden_sizes": (32,), "capacity": 4096, "batch_size": 64, "learning_starts": 256}
    hyper = td3.Hyper(**({"learning_rate": 5e-3, "tau": 0.05, "gamma": 0.8, "exploration_noise": 0.3} | hyper))
    agent, state = trained(td3, td3.Config(**(SMALL | many | settings)), hyper, env, 100)
    assert mean_return(agent, state, env) >= 0.97


def test_td3_bc_is_td3_with_the_settings_of_its_paper():
    config = td3_bc.Config()
    assert (config.behavior_cloning, config.normalize_obs, config.learning_starts) == (True, True, 0)
    changed = {"behavior_cloning": False, "normalize_obs": False, "learning_starts": 1000}
    assert td3.Config().model_dump() == config.model_dump() | changed
    assert config.num_gradient_steps(10) == 10


def test_ddpg_is_td3_with_other_settings():
    config, hyper = ddpg.Config(), ddpg.Hyper()
    same = td3.Config(num_critics=1, policy_delay=1)
    assert config.model_dump() == same.model_dump()
    changed = {field.name for field in fields(hyper) if getattr(hyper, field.name) != getattr(td3.Hyper(), field.name)}
    assert changed == {"exploration_noise", "noise_correlation", "target_noise"}
    assert hyper.target_noise == 0


def test_the_policy_and_the_critics_have_learning_rates_and_clip_norms_of_their_own():
    hyper = jax.tree.map(jnp.float32, td3.Hyper(max_grad_norm=2.0, critic_max_grad_norm=1.0, actor_max_grad_norm=3.0))
    rates = {"actor_learning_rate": jnp.float32(0.2), "critic_learning_rate": jnp.float32(0.3)}
    schedules = Schedules(jnp.float32(0.1), jnp.array(True), rates)
    policy, critics = q_critics.optimizers(td3.Config(), hyper, schedules)
    found = [
        float(x) for x in (policy.learning_rate, policy.max_grad_norm, critics.learning_rate, critics.max_grad_norm)
    ]
    np.testing.assert_allclose(found, [0.2, 2, 0.3, 1])
    policy, critics = q_critics.optimizers(td3.Config(), hyper, schedules._replace(group_rates={}))
    np.testing.assert_allclose([float(policy.learning_rate), float(critics.learning_rate)], 0.1)

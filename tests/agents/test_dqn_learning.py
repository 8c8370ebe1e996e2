"""DQN, C51, QR-DQN, PQN and R2D2 find values that are known: of a small decision process, and of the probes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tabular import Tabular

from rlkit import agents, envs, training
from rlkit.agents import c51, r2d2

SMALL = {"capacity": 2048, "batch_size": 64, "learning_starts": 256, "replay_ratio": 0.25, "target_every": 64}
TABLE = {"hidden_sizes": (), "learning_rate_schedule": "linear"}
ALL = {"dueling": True, "replay": "prioritized", "store_obs_once": True}


def learn(name, env, params, hyper, updates, **settings):
    """-> what it learned: values(obs), and the agent with its state."""
    module = agents.get(name)
    settings = (SMALL if name != "pqn" else {"num_minibatches": 1}) | settings
    agent = module.make(module.Config(**settings), env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=8, num_steps=8)
    hyper = {"schedule_steps": updates * 64.0} | ({"tau": 1.0} if name != "pqn" else {}) | hyper

    @jax.jit
    def run(key):
        start = pair.init(module.Hyper(**hyper), key)
        return jax.lax.scan(lambda state, _: (pair.step(state)[0], None), start, None, updates)[0]

    state, static = run(jax.random.key(0)).agent, agent.static

    def values(obs):
        output, _ = static.network.apply(state.params, state.stats, jnp.asarray(obs, jnp.float32))
        if name == "c51":
            output = c51.mean_returns(static, output)
        return np.asarray(output.mean(-1) if name == "qrdqn" else output)

    return values, agent, state


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "settings"), [
    pytest.param("dqn", {"double": False}, marks=pytest.mark.slow),
    ("dqn", ALL),
    ("c51", {"v_min": -5.0, "v_max": 10.0, "num_atoms": 31}),
    pytest.param("qrdqn", {"num_quantiles": 5}, marks=pytest.mark.slow),
    pytest.param("pqn", {"layer_norm": False, "num_epochs": 4}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_values_of_a_decision_process_are_found(name, settings):
    """From random actions alone, through ends that cut off and ends that do not."""
    env = Tabular()
    hyper = {"gamma": 0.8, "learning_rate": 0.1, "epsilon_end": 1.0}
    if name == "pqn":
        hyper["q_lambda"] = 0.0
    values, *_ = learn(name, env, (), hyper, 250, **(TABLE | settings))
    np.testing.assert_allclose(values(np.eye(5)), env.values(0.8), atol=0.005)


def table(num_states, num_actions):
    """A table of values that has a memory, as R2D2 wants it, and does not use it."""
    return (
        lambda key, obs, memory: jnp.zeros((num_states, num_actions)),
        lambda params, obs, memory: (obs @ params, memory),
        np.zeros(1, np.float32),
    )


@pytest.mark.thorough
def test_the_values_of_a_decision_process_are_found_from_sequences():
    """R2D2's that run on across ends of episodes; n-step returns would be of the behavior, so n is 1."""
    env, updates = Tabular(), 150
    settings = {"capacity": 2048, "learning_starts": 256, "replay_ratio": 0.25, "batch_size": 16}
    settings |= {"n_step": 1, "burn_in": 2, "unroll_len": 8, "rescale": False, "target_every": 64}
    config = r2d2.Config(**settings, learning_rate_schedule="linear")
    agent = r2d2.make(config, env.observation_space(), env.action_space(), networks=table(*env.shape))
    pair = training.make(agent, env, (), num_envs=8, num_steps=8)
    hyper = r2d2.Hyper(
        gamma=0.8, learning_rate=0.1, tau=1.0, epsilon_end=1.0, epsilon_ladder=0.0, schedule_steps=updates * 64.0
    )
    run = jax.jit(lambda s: jax.lax.scan(lambda s, _: (pair.step(s)[0], None), s, None, updates)[0])
    state = run(jax.jit(pair.init)(hyper, jax.random.key(0)))
    np.testing.assert_allclose(state.agent.params, env.values(0.8), atol=0.005)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "settings"), [
    ("dqn", ALL | {"n_step": 3}),
    pytest.param("c51", {"v_min": 0.0, "v_max": 6.0, "num_atoms": 31}, marks=pytest.mark.slow),
    pytest.param("pqn", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_truncation_is_told_from_termination(name, settings):
    """Treating truncation as an end, or bootstrapping from the reset observation, misses these by more than 1."""
    env, params = envs.make("Probe-Truncation")
    hyper = {"gamma": 0.8, "learning_rate": 3e-3, "epsilon_steps": 2000.0}
    values, *_ = learn(name, env, params, hyper, 400, hidden_sizes=(32,), **settings)
    obs = [[-1.0, 0.0], [1.0, 0.0], [1.0, 1 / 3], [1.0, 2 / 3]]
    expected = np.repeat([[5.0], [2.44], [1.8], [1.0]], 2, axis=1)  # no action matters
    np.testing.assert_allclose(values(obs), expected, atol=0.25)


@pytest.mark.parametrize(("name", "env_name", "settings"), [
    pytest.param("dqn", "Probe-ObservationAction", {"noisy": True}, marks=pytest.mark.slow),
    pytest.param(
        "c51", "Probe-MaskedAction", {"num_atoms": 11, "n_step": 2, "normalize_obs": True}, marks=pytest.mark.slow
    ),
])  # fmt: skip
def test_the_best_policy_is_found(name, env_name, settings):
    env, params = envs.make(env_name)
    hyper = {"gamma": 0.8, "learning_rate": 3e-3, "epsilon_steps": 2000.0}
    _, agent, state = learn(name, env, params, hyper, 100, hidden_sizes=(16,), **settings)
    evaluate = jax.jit(partial(training.evaluate, agent, env, params, num_envs=64, max_steps=2))
    assert evaluate(agent.actor(state), jax.random.key(1)).returns.mean() == 1.0

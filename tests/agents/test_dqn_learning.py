"""DQN, C51, QR-DQN, PQN and R2D2 find values that are known: of a small decision process, and of the probes."""

import jax.numpy as jnp
import numpy as np
import pytest
from short_trainings import mean_return, trained
from tabular import Tabular

from rlkit import agents, envs
from rlkit.agents import c51, r2d2

SMALL = {"capacity": 2048, "batch_size": 64, "learning_starts": 256, "replay_ratio": 0.25, "target_every": 64}
TABLE = {"hidden_sizes": (), "learning_rate_schedule": "linear"}
ALL = {"dueling": True, "replay": "prioritized", "store_obs_once": True}


def learn(name, env, hyper, updates, **settings):
    """-> what it learned: values(obs), and the agent with its state."""
    module = agents.get(name)
    settings = (SMALL if name != "pqn" else {"num_minibatches": 1}) | settings
    hyper = {"schedule_steps": updates * 64.0} | ({"tau": 1.0} if name != "pqn" else {}) | hyper
    agent, state = trained(module, module.Config(**settings), module.Hyper(**hyper), env, updates)

    def values(obs):
        output, _ = agent.static.network.apply(state.params, state.stats, jnp.asarray(obs, jnp.float32))
        if name == "c51":
            output = c51.mean_returns(agent.static, output)
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
    values, *_ = learn(name, (env, ()), hyper, 250, **(TABLE | settings))
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
    hyper = r2d2.Hyper(
        gamma=0.8, learning_rate=0.1, tau=1.0, epsilon_end=1.0, epsilon_ladder=0.0, schedule_steps=updates * 64.0
    )
    _, state = trained(r2d2, config, hyper, (env, ()), updates, networks=table(*env.shape))
    np.testing.assert_allclose(state.params, env.values(0.8), atol=0.005)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "settings"), [
    ("dqn", ALL | {"n_step": 3}),
    pytest.param("c51", {"v_min": 0.0, "v_max": 6.0, "num_atoms": 31}, marks=pytest.mark.slow),
    pytest.param("pqn", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_truncation_is_told_from_termination(name, settings):
    """Treating truncation as an end, or bootstrapping from the reset observation, misses these by more than 1."""
    env = envs.make("Probe-Truncation")
    hyper = {"gamma": 0.8, "learning_rate": 3e-3, "epsilon_steps": 2000.0}
    values, *_ = learn(name, env, hyper, 400, hidden_sizes=(32,), **settings)
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
    env = envs.make(env_name)
    hyper = {"gamma": 0.8, "learning_rate": 3e-3, "epsilon_steps": 2000.0}
    _, agent, state = learn(name, env, hyper, 100, hidden_sizes=(16,), **settings)
    assert mean_return(agent, state, env) == 1.0

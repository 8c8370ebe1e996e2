"""PPO learns the known values and policies of the probe environments, and CartPole in few steps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import envs, training
from rlkit.agents import ppo
from rlkit.envs.probes import HybridAction
from rlkit.spaces import Tuple

SETTINGS = {"hidden_sizes": (16,), "num_epochs": 4, "num_minibatches": 4}


class HybridTuple(HybridAction):
    """Its action as a tuple within a tuple."""

    def action_space(self, params=()):
        amount, side = super().action_space(params).spaces.values()
        return Tuple((side, Tuple((amount,))))

    def _reward(self, state, action):
        side, (amount,) = action
        return super()._reward(state, {"amount": amount, "side": side})


def learn(env_name, updates, *, num_envs=32, num_steps=16, networks=None, hyper=None, **config):
    """Train PPO; return the agent's final state and the mean return of the greedy policy."""
    env, params = envs.make(env_name) if isinstance(env_name, str) else (env_name, ())
    spaces = env.observation_space(params), env.action_space(params)
    agent = ppo.make(ppo.Config(**(SETTINGS | config)), *spaces, networks)
    pair = training.make(agent, env, params, num_envs=num_envs, num_steps=num_steps)

    @jax.jit
    def run(key):
        train_key, eval_key = jax.random.split(key)
        values = {"learning_rate": 5e-3, "gamma": 0.9} | (hyper or {})
        state = pair.init(ppo.Hyper(**values), train_key)
        state = jax.lax.scan(lambda s, _: (pair.step(s)[0], None), state, None, updates)[0]
        actor = agent.actor(state.agent)
        return state, training.evaluate(agent, env, params, actor, eval_key, num_envs=96, max_steps=600)

    state, evaluation = run(jax.random.key(0))
    assert bool(evaluation.finished.all())
    return state.agent, float(evaluation.returns.mean())


class Network(nn.Module):
    """Two actions and a value, each with one hidden layer of 16."""

    @nn.compact
    def __call__(self, obs):
        logits, value = (nn.Dense(size)(nn.tanh(nn.Dense(16)(obs))) for size in (2, 1))
        return logits, value[..., 0]


def learned_values(env_name, updates, obs, **settings):
    """Values of observations after training with a `Network`."""
    state, _ = learn(env_name, updates, networks=Network(), **settings)
    return Network().apply(state.params, jnp.asarray(obs, jnp.float32))[1]


@pytest.mark.slow
def test_constant_value():
    np.testing.assert_allclose(learned_values("Probe-ConstantValue", 40, [[0.0]]), [1.0], atol=0.05)


@pytest.mark.thorough
def test_delayed_reward_is_discounted():
    np.testing.assert_allclose(learned_values("Probe-DelayedReward", 80, [[0.0], [1.0]]), [0.9, 1.0], atol=0.05)


def test_truncation_differs_from_termination():
    """Treating truncation as terminal, or bootstrapping from the reset observation, gives errors of more than 1."""
    obs = [[-1.0, 0.0], [1.0, 0.0], [1.0, 1 / 3], [1.0, 2 / 3]]
    values = learned_values("Probe-Truncation", 300, obs, hyper={"gamma": 0.8, "gae_lambda": 0.9})
    np.testing.assert_allclose(values, [5.0, 2.44, 1.8, 1.0], atol=0.25)


@pytest.mark.parametrize(("env_name", "updates", "best", "config"), [
    ("Probe-ObservationAction", 40, 1.0, {}),
    pytest.param("Probe-MaskedAction", 40, 1.0, {}, marks=pytest.mark.thorough),
    pytest.param("Probe-MultiDiscreteAction", 60, 1.0, {}, marks=pytest.mark.slow),
    pytest.param(HybridTuple(), 60, 0.95, {"log_std_init": -0.5, "squash": True}, marks=pytest.mark.thorough),
    pytest.param("Probe-Continuous", 150, 0.97, {"log_std_init": -0.5}, marks=pytest.mark.slow),
    pytest.param("Probe-Continuous", 150, 0.95, {"squash": True, "log_std_init": -0.5}, marks=pytest.mark.slow),
    pytest.param("Probe-Continuous", 150, 0.9, {"gsde": True, "log_std_init": -1.0}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_best_policy_is_found(env_name, updates, best, config):
    assert learn(env_name, updates, **config)[1] >= best - 1e-6


@pytest.mark.parametrize(
    "recurrent", [pytest.param("gru", marks=pytest.mark.thorough), pytest.param("lstm", marks=pytest.mark.slow)]
)
def test_memory_is_learned_where_it_is_needed(recurrent):
    hyper = {"learning_rate": 3e-3, "gamma": 0.99, "ent_coef": 0.01, "schedule_steps": 200 * 32 * 16.0}
    settings = {"recurrent": recurrent, "memory_size": 16, "learning_rate_schedule": "linear", "hyper": hyper}
    assert learn("Probe-Memory", 200, **settings)[1] >= 0.95
    assert abs(learn("Probe-Memory", 5)[1]) < 0.6  # the mean of every policy without a memory is 0


@pytest.mark.thorough
def test_players_of_a_world_learn_with_shared_parameters():
    """Two of three players need a memory; rewards, masks or resets of another player would cost returns."""
    hyper = {"learning_rate": 3e-3, "gamma": 0.99, "ent_coef": 0.01, "schedule_steps": 200 * 48 * 15.0}
    settings = {"recurrent": "gru", "memory_size": 16, "learning_rate_schedule": "linear", "hyper": hyper}
    assert learn("Probe-Players", 200, num_envs=48, num_steps=15, **settings)[1] >= 0.95


@pytest.mark.thorough
def test_cartpole_in_fifty_thousand_steps():
    _, score = learn(
        "CartPole-v1", 100, num_envs=8, num_steps=64, hidden_sizes=(64, 64), num_epochs=10,
        hyper={"learning_rate": 1e-3, "gamma": 0.98, "gae_lambda": 0.8, "schedule_steps": 51_200.0},
        learning_rate_schedule="linear", clip_schedule="linear",
    )  # fmt: skip
    assert score >= 300

"""The wrapper that adds the previous action and its reward: exact, and of use to an agent with memory."""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter, Masked

from rlkit import envs, training
from rlkit.agents import ppo
from rlkit.envs import wrappers
from rlkit.envs.probe_base import Probe
from rlkit.spaces import Box, Dict
from rlkit.types import ConfigError

STEPS = 20
ACTIONS = jax.random.randint(jax.random.key(8), (STEPS,), 0, 3)


def run(env):
    """Play with fixed keys and actions: -> first obs; obs, final, reward, terminated, truncated, a list of each."""
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    first, state = reset(jax.random.key(0), ())
    steps = []
    for action, key in zip(ACTIONS, jax.random.split(jax.random.key(7), STEPS), strict=True):
        obs, state, reward, terminated, truncated, info = step(key, state, action, ())
        steps.append((obs, info["final_observation"], reward, terminated, truncated))
    return jax.device_get((first, *zip(*steps, strict=True)))


@pytest.mark.parametrize("env", [pytest.param(Counter(), marks=pytest.mark.slow), Masked()], ids=["box", "dict"])
def test_previous_action_and_reward(env):
    first, obs, final, reward, terminated, truncated = run(env)
    wrapped = run(wrappers.PreviousActionReward(env))

    def expected(obs, action, reward):
        added = {"previous_action": action, "previous_reward": np.array([reward], np.float32)}
        return (obs if isinstance(obs, dict) else {"obs": obs}) | added

    assert np.sum(terminated) + np.sum(truncated) > 3
    start = np.zeros(3), 0.0
    previous = list(zip(np.eye(3)[np.array(ACTIONS)], reward, strict=True))
    chex.assert_trees_all_equal(wrapped[0], expected(first, *start))
    for t in range(STEPS):
        seen = start if terminated[t] or truncated[t] else previous[t]
        chex.assert_trees_all_equal(wrapped[1][t], expected(obs[t], *seen))
        chex.assert_trees_all_equal(wrapped[2][t], expected(final[t], *previous[t]))
    assert wrapped[3:] == (reward, terminated, truncated)


@dataclass(frozen=True)
class HiddenArm(Probe):
    """A bandit whose better arm is drawn for each episode of eight steps and shown by its rewards alone."""

    length: int = 8

    def _observe(self, state):
        return jnp.zeros((1,), jnp.float32)

    def _reward(self, state, action):
        return (action == 1) == (state.cue > 0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("specs", "least", "most"),
    [(["previous_action_reward"], 7.0, 8.0), pytest.param([], 3.0, 5.0, marks=pytest.mark.slow)],
)
def test_memory_learns_from_rewards_that_it_sees(specs, least, most):
    env = envs.wrap(HiddenArm(), specs)
    config = ppo.Config(recurrent="gru", memory_size=16, hidden_sizes=(32,), num_minibatches=2)
    agent = ppo.make(config, env.observation_space(()), env.action_space(()))
    init, step = training.make(agent, env, (), num_envs=32, num_steps=16)

    @jax.jit
    def returns(key):
        train_key, eval_key = jax.random.split(key)
        state = init(ppo.Hyper(learning_rate=3e-3), train_key)
        state, _ = jax.lax.scan(lambda state, _: step(state), state, None, 150)
        return training.evaluate(agent, env, (), agent.actor(state.agent), eval_key, num_envs=256).returns

    assert least < returns(jax.random.key(0)).mean() <= most


def test_previous_action_and_reward_of_boxes():
    env, params = envs.make("Pendulum-v1")
    wrapped = envs.wrap(env, ["previous_action_reward"])
    envs.check(wrapped, params, jax.random.key(0))
    space = wrapped.observation_space(params)
    assert isinstance(space, Dict)
    assert space.spaces["previous_action"] == env.action_space(params)
    assert space.spaces["previous_reward"] == Box(-np.inf, np.inf, (1,))
    with pytest.raises(ConfigError, match="has previous_action already"):
        envs.wrap(wrapped, ["previous_action_reward"]).observation_space(params)

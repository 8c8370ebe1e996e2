"""Evaluation in environments outside of JAX: the same number of episodes from each environment."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rlkit import hosts
from rlkit.hosts import evaluate
from rlkit.hosts.evaluate import play
from rlkit.types import Agent

pytestmark = pytest.mark.thorough


class Uneven(gymnasium.Env):
    """Episodes of 10 steps with return 0 and of 100 steps with return 1, half each."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.time = int(self.np_random.choice([10, 100])), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        ends = self.time == self.length
        return np.zeros(1, np.float32), float(ends and self.length == 100), ends, False, {}


def test_a_long_evaluation_shows_its_progress(monkeypatch):
    agent, lines = Agent(init=None, actor=None, act=None, policy=None, update=None), []
    monkeypatch.setattr(evaluate, "clock", iter(range(0, 10_000, 3)).__next__)

    def policy(actor, memory, obs, key):
        return memory, jnp.zeros(2, jnp.int32), ()

    with hosts.make(Uneven, num_envs=2, backend="serial") as pool:
        play(agent, policy, pool, jnp.zeros(()), seed=0, episodes_per_env=2, max_steps=20, on_progress=lines.append)
    assert lines[0] == "evaluating: 0 of 4 episodes, 0 steps of each"
    assert 2 < len(lines) < 20


@pytest.mark.parametrize(("num_envs", "episodes"), [(128, 1), (64, 2)])
def test_short_episodes_do_not_count_more(num_envs, episodes):
    """Most of the first 128 episodes to finish in 128 environments are short."""
    agent = Agent(init=None, actor=None, act=None, policy=None, update=None)

    def policy(actor, memory, obs, key):
        return memory, jnp.zeros(num_envs, jnp.int32), ()

    with hosts.make(Uneven, num_envs=num_envs, backend="serial") as pool:
        result = play(agent, policy, pool, jnp.zeros(()), seed=0, episodes_per_env=episodes)
    np.testing.assert_array_equal(result.finished, np.ones((num_envs, episodes), bool))
    assert abs(result.returns.mean() - 0.5) < 0.13  # three standard deviations
    np.testing.assert_array_equal(result.lengths, np.where(result.returns == 1, 100, 10))

"""Scores in environments outside of JAX: of the environment's own rewards and episodes, whatever is learned from."""

import copy

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from host_envs import Counter

from rlkit import hosts
from rlkit.hosts.evaluate import play
from rlkit.hosts.worker.own_rewards import record
from rlkit.hosts.worker.wrappers import EndOnLifeLoss
from rlkit.types import Agent

pytestmark = pytest.mark.thorough


class Game(gymnasium.Env):
    """A game of three lives of two steps each, with rewards of 5; it has what the wrapper needs of an Atari game.

    It observes the number of the game and the step in it. A game over twice in a row is an error.
    """

    observation_space = spaces.Box(0, 1000, (2,), np.float64)
    action_space = spaces.Discrete(2)
    game = -1

    @property
    def ale(self):
        return self

    def lives(self):
        return 3 - self.time // 2

    def reset(self, *, seed=None, options=None):
        self.game, self.time = 0 if seed is not None else self.game + 1, 0
        return self._obs(), {}

    def step(self, action):
        assert self.lives()
        self.time += 1
        return self._obs(), 5.0, self.lives() == 0, False, {}

    def _obs(self):
        return np.array([self.game, self.time], np.float64)


class Doubled(gymnasium.RewardWrapper):
    """A wrapper that says nothing about learning: a part of the environment."""

    def reward(self, reward):
        return 2 * reward


class Halved(gymnasium.RewardWrapper):
    """A user's wrapper for learning only."""

    rlkit_for_learning = True

    def reward(self, reward):
        return reward / 2


def scores(make, num_steps=12, num_envs=1, **arguments):
    """Rewards that are learned from, learner's ends, and scores (return, length) of an environment, in order."""
    with hosts.make(make, num_envs=num_envs, backend="serial", **arguments) as pool:
        pool.reset()
        steps = [pool.step(np.zeros(num_envs, np.int32)) for _ in range(num_steps)]
    ends = [int(i) for i, step in enumerate(steps) if (step.terminated | step.truncated)[0]]
    found = [(step.returns[0].item(), step.lengths[0].item()) for step in steps if step.lengths[0]]
    return [step.reward[0].item() for step in steps], ends, found


@pytest.mark.parametrize("specs", [["scale_reward:0.1"], ["clip_reward:-1,1"], ["clip_reward:-1,1", "scale_reward:9"]])
def test_a_change_of_rewards_does_not_change_scores(specs):
    rewards, ends, found = scores(Counter)
    changed = scores(Counter, wrappers=specs)
    assert changed[1:] == (ends, found)
    assert found == [(6.0, 3)] * 4
    assert changed[0] != rewards


def test_wrappers_around_a_change_of_rewards():
    """Repeats and limits are part of the environment, inside of the change or around it."""
    inside = scores(Counter, wrappers=["action_repeat:2", "time_limit:2", "scale_reward:0.1"], length=100)
    around = scores(Counter, wrappers=["scale_reward:0.1", "action_repeat:2", "time_limit:2"], length=100)
    assert inside[1:] == around[1:] == (list(range(1, 12, 2)), [(10.0, 2)] * 6)
    np.testing.assert_allclose(inside[0], around[0])


@pytest.mark.parametrize("wrap", [Halved, gymnasium.wrappers.NormalizeReward])
def test_a_wrapper_of_the_users_is_marked(wrap):
    found = scores(lambda: Doubled(wrap(Doubled(Counter()))))[2]
    assert found == [(12.0, 3)] * 4  # doubled inside of the mark, and not outside of it
    assert scores(lambda: Doubled(Counter()))[2] == found


def test_an_environment_whose_rewards_are_recorded_can_be_copied():
    env = Halved(Counter())
    assert record(env) is not None
    again = copy.deepcopy(env)
    again.reset()
    assert (again.step(1)[1], again.env.reward, env.env.reward) == (0.5, 1.0, 0.0)


@pytest.mark.parametrize("specs", [[], ["clip_reward:-1,1"]])
def test_scores_are_of_whole_games_where_a_lost_life_ends_an_episode(specs):
    """After a lost life the game goes on with a step of the wrapper's own, which is not one of the learner's."""
    rewards, ends, found = scores(lambda: EndOnLifeLoss(Game()), num_steps=10, wrappers=specs)
    assert ends == [1, 2, 3, 5, 6, 7, 9]  # lives after 2 steps, and after one more, as the wrapper takes the other
    assert found == [(30.0, 4)] * 2
    assert set(rewards) == ({1.0} if specs else {5.0})


def test_a_seed_starts_a_new_game():
    with hosts.make(lambda: EndOnLifeLoss(Game()), num_envs=1, backend="serial") as pool:
        first = pool.reset(3)
        for _ in range(3):
            pool.step(np.zeros(1, np.int32))
        np.testing.assert_array_equal(pool.reset(3), first)
        assert [pool.step(np.zeros(1, np.int32)).lengths.item() for _ in range(4)] == [0, 0, 0, 4]


def test_an_evaluation_is_of_whole_games_and_unchanged_rewards():
    agent = Agent(init=None, actor=None, act=None, policy=None, update=None)

    def policy(actor, memory, obs, key):
        return memory, jnp.zeros(2, jnp.int32), ()

    settings = {"num_envs": 2, "backend": "serial", "wrappers": ["scale_reward:0.01"]}
    with hosts.make(lambda: EndOnLifeLoss(Game()), **settings) as pool:
        result = play(agent, policy, pool, jnp.zeros(()), seed=0, episodes_per_env=3)
    np.testing.assert_array_equal(result.returns, np.full((2, 3), 30.0))
    np.testing.assert_array_equal(result.lengths, np.full((2, 3), 4))


@pytest.mark.parametrize("wrap", [gymnasium.wrappers.vector.ClipReward, gymnasium.wrappers.vector.NormalizeReward])
def test_scores_of_a_vector_environment(wrap):
    def make():
        envs = gymnasium.vector.SyncVectorEnv([lambda: Counter(ends="terminated")] * 2)
        return wrap(envs, 0.0, 0.5) if wrap is gymnasium.wrappers.vector.ClipReward else wrap(envs)

    with hosts.from_vector(make) as pool:
        pool.reset(0)
        steps = [pool.step(np.zeros(2, np.int32)) for _ in range(7)]
        pool.reset(1)
        steps += [pool.step(np.zeros(2, np.int32)) for _ in range(3)]
    assert [step.returns[0].item() for step in steps if step.lengths[0]] == [6.0] * 3
    assert any(step.reward.max() % 1 for step in steps)


def test_returns_keep_the_precision_of_the_environment():
    class Large(Counter):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, 16_777_217.0 if self.time < 3 else -33_554_432.0, *rest

    assert scores(Large)[2] == [(2.0, 3)] * 4

"""Scores of environments in JAX: of the task's own rewards and episodes, whatever is learned from, and exact sums."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter, CounterState

from rlkit import envs, training
from rlkit.envs import wrappers
from rlkit.envs.probe_base import Probe
from rlkit.types import Agent

NUM_ENVS, STEPS = 2, 60


class Brief(Counter):
    """A Counter that draws one number for an episode, from which its length is made too."""

    def reset(self, key, params):
        tag, zero = jax.random.uniform(key), jnp.zeros((), jnp.int32)
        state = CounterState(tag, 2 + (4 * tag).astype(jnp.int32), zero, zero)
        return self._obs(state), state


PLAIN = Brief()


@dataclass(frozen=True)
class EndsForLearning(wrappers.Wrapper):
    """Ends the learner's episode at every second step of the task's, which goes on."""

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = {"own_done": terminated | truncated, **info}
        return obs, state, reward, terminated | (state.time % 2 == 0), truncated, info


class Drip(Probe):
    """Gives a reward of 0.1 at each of the many steps of an episode."""

    length = 90_000

    def _reward(self, state, action):
        return 0.1


def act(actor, memory, obs, key):
    """Either of two actions, by what is observed."""
    return memory, (64 * jnp.sum(obs)).astype(jnp.int32) % 2, ()


AGENT = Agent(init=None, actor=lambda s: s, act=act, policy=act, update=None, memory=())


@cache
def scores(env: Any) -> tuple[np.ndarray, ...]:
    """Returns and lengths [T, N] of the episodes of a rollout, and the rewards that are learned from."""

    @jax.jit
    def play(key):
        stands = training.reset(AGENT, env, (), key, NUM_ENVS)
        _, steps, episodes = training.rollout(AGENT, env, (), (), stands, jax.random.key(1), STEPS)
        return episodes.returns, episodes.lengths, steps.reward

    return jax.device_get(play(jax.random.key(0)))


@cache
def evaluation(env: Any) -> training.Evaluation:
    return jax.jit(lambda key: training.evaluate(AGENT, env, (), (), key, num_envs=8))(jax.random.key(2))


@pytest.mark.parametrize("specs", [["scale_reward:0.01"], ["clip_reward:0,1", "scale_reward:3"]])
def test_scores_are_of_the_rewards_before_a_wrapper_changed_them(specs):
    returns, lengths, rewards = scores(PLAIN)
    env = envs.wrap(PLAIN, specs)
    changed = scores(env)
    np.testing.assert_array_equal(changed[0], returns)
    np.testing.assert_array_equal(changed[1], lengths)
    jax.tree.map(np.testing.assert_array_equal, evaluation(env), evaluation(PLAIN))
    expected = rewards * np.float32(0.01) if len(specs) == 1 else np.clip(rewards, 0, 1) * 3
    np.testing.assert_array_equal(changed[2], expected)
    assert changed[2].max() <= 3.0 < rewards.max()


def test_scores_under_repeats_and_limits_around_a_change_of_rewards():
    plain = scores(envs.wrap(PLAIN, ["action_repeat:2", "time_limit:2"]))
    changed = scores(envs.wrap(PLAIN, ["scale_reward:0.5", "action_repeat:2", "time_limit:2"]))
    np.testing.assert_array_equal(changed[0], plain[0])
    np.testing.assert_array_equal(changed[1], plain[1])
    np.testing.assert_array_equal(changed[2], plain[2] / 2)


def test_scores_are_of_whole_episodes_of_the_task():
    returns, lengths, _ = scores(PLAIN)
    env = EndsForLearning(PLAIN)
    changed = scores(env)
    assert set(lengths[lengths > 0]) == {2, 3, 4, 5}
    np.testing.assert_array_equal(changed[0], returns)
    np.testing.assert_array_equal(changed[1], lengths)
    jax.tree.map(np.testing.assert_array_equal, evaluation(env), evaluation(PLAIN))


def test_a_time_limit_ends_the_task_where_a_wrapper_ends_episodes_for_learning():
    env = envs.wrap(EndsForLearning(PLAIN), ["time_limit:3"])
    lengths = scores(env)[1]
    assert set(lengths[lengths > 0]) == {2, 3}
    assert evaluation(env).lengths.max() == 3


def test_the_sum_of_many_small_rewards_is_exact_to_a_rounding():
    env = Drip()

    @jax.jit
    def play(key):
        def chunk(state, key):
            state, _, episodes = training.rollout(AGENT, env, (), (), state, key, 1000)
            return state, jnp.nanmax(episodes.returns)

        stands = training.reset(AGENT, env, (), key, 1)
        returns = jax.lax.scan(chunk, stands, jax.random.split(key, 90))[1]
        return jnp.nanmax(returns)

    total = np.float64(play(jax.random.key(0)))
    assert total == pytest.approx(90_000 * np.float64(np.float32(0.1)), rel=1e-6)

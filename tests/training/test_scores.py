"""Scores of environments in JAX: of the task's own rewards and episodes, whatever is learned from, and exact sums."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter

from rlkit import envs, training
from rlkit.agents import ppo
from rlkit.envs import wrappers
from rlkit.spaces import Box, Discrete

NUM_ENVS, STEPS = 2, 60


@dataclass(frozen=True)
class EndsForLearning(wrappers.Wrapper):
    """Ends the learner's episode at every second step of the task's, which goes on."""

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = {"own_done": terminated | truncated, **info}
        return obs, state, reward, terminated | (state.time % 2 == 0), truncated, info


class Drip:
    """Gives a reward of 0.1 at each of the million steps of an episode."""

    max_steps = 900_000

    def reset(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step(self, key, state, action, params):
        done = state + 1 >= self.max_steps
        info = {"final_observation": jnp.zeros(1)}
        return jnp.zeros(1), jnp.where(done, 0, state + 1), jnp.float32(0.1), jnp.bool_(False), done, info

    def observation_space(self, params):
        return Box(0, 1, (1,))

    def action_space(self, params):
        return Discrete(2)


def agent_of(env: Any):
    config = ppo.Config(hidden_sizes=(2,), num_minibatches=1)
    return ppo.make(config, env.observation_space(()), env.action_space(()))


def scores(env: Any) -> tuple[np.ndarray, ...]:
    """Returns and lengths [T, N] of the episodes of a rollout, and the rewards that are learned from."""
    agent = agent_of(env)

    @jax.jit
    def play(key):
        init = training.make(agent, env, (), num_envs=NUM_ENVS, num_steps=STEPS, total_steps=1000).init
        state = init(ppo.Hyper(), key)
        actor = agent.actor(state.agent)
        _, steps, episodes = training.rollout(agent, env, (), actor, state.envs, jax.random.key(1), STEPS)
        evaluation = training.evaluate(agent, env, (), actor, jax.random.key(2), num_envs=8)
        return episodes.returns, episodes.lengths, steps.reward, evaluation

    return jax.device_get(play(jax.random.key(0)))


@pytest.mark.parametrize("specs", [["scale_reward:0.01"], ["clip_reward:-1,1"], ["clip_reward:0,1", "scale_reward:3"]])
def test_scores_are_of_the_rewards_before_a_wrapper_changed_them(specs):
    returns, lengths, rewards, evaluation = scores(Counter())
    changed = scores(envs.wrap(Counter(), specs))
    np.testing.assert_array_equal(changed[0], returns)
    np.testing.assert_array_equal(changed[1], lengths)
    jax.tree.map(np.testing.assert_array_equal, changed[3], evaluation)
    expected = {"scale": rewards * np.float32(0.01), "clip": np.clip(rewards, -1, 1)}[specs[0][: specs[0].index("_")]]
    if len(specs) == 1:
        np.testing.assert_array_equal(changed[2], expected)
    assert changed[2].max() <= 3.0 < rewards.max()


def test_scores_under_repeats_and_limits_around_a_change_of_rewards():
    plain = scores(envs.wrap(Counter(), ["action_repeat:2", "time_limit:2"]))
    changed = scores(envs.wrap(Counter(), ["scale_reward:0.5", "action_repeat:2", "time_limit:2"]))
    np.testing.assert_array_equal(changed[0], plain[0])
    np.testing.assert_array_equal(changed[1], plain[1])
    np.testing.assert_array_equal(changed[2], plain[2] / 2)


def test_scores_are_of_whole_episodes_of_the_task():
    returns, lengths, _, evaluation = scores(Counter())
    changed = scores(EndsForLearning(Counter()))
    assert set(lengths[lengths > 0]) == {2, 3, 4, 5}
    np.testing.assert_array_equal(changed[0], returns)
    np.testing.assert_array_equal(changed[1], lengths)
    jax.tree.map(np.testing.assert_array_equal, changed[3], evaluation)


def test_a_time_limit_ends_the_task_where_a_wrapper_ends_episodes_for_learning():
    _, lengths, _, evaluation = scores(envs.wrap(EndsForLearning(Counter()), ["time_limit:3"]))
    assert set(lengths[lengths > 0]) == {2, 3}
    assert evaluation.lengths.max() == 3


@pytest.mark.optimized
def test_the_sum_of_many_small_rewards_is_exact_to_a_rounding():
    env = Drip()
    agent = agent_of(env)

    @jax.jit
    def play(key):
        pair = training.make(agent, env, (), num_envs=1, num_steps=4, total_steps=1000)
        state = pair.init(ppo.Hyper(), key)
        actor = agent.actor(state.agent)

        def chunk(state, key):
            state, _, episodes = training.rollout(agent, env, (), actor, state, key, 1000)
            return state, jnp.nanmax(episodes.returns)

        returns = jax.lax.scan(chunk, state.envs, jax.random.split(key, 900))[1]
        return jnp.nanmax(returns)

    total = np.float64(play(jax.random.key(0)))
    assert total == pytest.approx(900_000 * np.float64(np.float32(0.1)), rel=1e-6)

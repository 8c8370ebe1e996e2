"""Hindsight relabelling: goals, rewards and flags by hand; learning that fails without it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import envs, replay, training
from rlkit.agents import dqn
from rlkit.agents.common import off_policy
from rlkit.replay import hindsight
from rlkit.types import ConfigError, Sample, Transition

pytestmark = pytest.mark.thorough
LENGTH = 10


def outcome(reached, goal):
    is_reached = (reached == goal).all()
    return jnp.where(is_reached, 0.0, -1.0), is_reached


relabel = partial(
    hindsight.relabel,
    goal_of=lambda obs: obs["achieved_goal"],
    with_goal=lambda obs, goal: obs | {"desired_goal": goal},
    reward_fn=outcome,
)


def walk(length=5):
    """A walk along the integers, whose goal of 99 is not reached; the last step is truncated."""
    at = jnp.arange(length + 1.0)[:, None]
    goal = jnp.full((length, 1), 99.0)
    flag = jnp.zeros(length, bool)
    obs, next_obs = {"achieved_goal": at[:-1], "desired_goal": goal}, {"achieved_goal": at[1:], "desired_goal": goal}
    return Transition(obs, flag.astype(jnp.int32), -jnp.ones(length), flag, flag.at[-1].set(True), next_obs)


def test_goals_are_reached_later_in_the_real_steps():
    mask = jnp.arange(5) < 4
    keys = jax.random.split(jax.random.key(0), 400)
    new = jax.vmap(lambda key: relabel(walk(), mask, key, ratio=1.0))(keys)
    goals = np.asarray(new.obs["desired_goal"][..., 0])
    np.testing.assert_array_equal(goals, new.next_obs["desired_goal"][..., 0])
    for t in range(4):  # step t reaches t + 1, and the last real one reaches 4
        values, counts = np.unique(goals[:, t], return_counts=True)
        np.testing.assert_array_equal(values, np.arange(t + 1.0, 5))
        assert counts.min() > 400 / (4 - t) / 2
        np.testing.assert_array_equal(new.terminated[:, t], goals[:, t] == t + 1)
        np.testing.assert_array_equal(new.reward[:, t], np.where(goals[:, t] == t + 1, 0.0, -1.0))
    assert (goals[:, 4] == 99).all()
    assert new.truncated[:, 4].all()
    np.testing.assert_array_equal(new.obs["achieved_goal"], np.broadcast_to(walk().obs["achieved_goal"], (400, 5, 1)))


@pytest.mark.parametrize("ends", [True, False])
def test_a_terminal_state_stays_one_whatever_the_goal(ends):
    """Its new goal is what it reached; a fall is the end of the episode for every goal."""
    last = jnp.arange(5) == 4
    fallen = walk()._replace(terminated=last, truncated=jnp.zeros(5, bool))

    def reward_fn(reached, goal):
        reward, is_reached = outcome(reached, goal)
        return reward, is_reached & ends

    keys = jax.random.split(jax.random.key(1), 20)
    new = jax.vmap(lambda key: relabel(fallen, jnp.ones(5, bool), key, ratio=1.0, reward_fn=reward_fn))(keys)
    assert (new.obs["desired_goal"][:, 4] == 5).all()
    assert new.terminated[:, 4].all()
    assert not new.truncated.any()
    assert new.terminated[:, :4].any() == ends


def test_a_reward_is_of_the_reached_and_the_wanted_goal():
    def distance(reached, goal):
        return (goal - reached).sum(), jnp.zeros((), bool)

    new = relabel(walk(), jnp.ones(5, bool), jax.random.key(0), ratio=1.0, reward_fn=distance)
    np.testing.assert_array_equal(new.reward, (new.obs["desired_goal"] - walk().next_obs["achieved_goal"])[:, 0])
    assert (new.reward > 0).any()


def test_ratio():
    slices = jax.tree.map(lambda x: jnp.broadcast_to(x, (400, *x.shape)), walk())
    keys = jax.random.split(jax.random.key(0), 400)
    for ratio in (0.0, 0.8):
        new = jax.vmap(lambda item, key, ratio=ratio: relabel(item, jnp.ones(5, bool), key, ratio=ratio))(slices, keys)
        assert abs(float((new.obs["desired_goal"] != 99).mean()) - ratio) < 0.04
        furthest = float(
            (new.obs["desired_goal"][:, 0] == 5).mean()
        )  # one of five goals, whether or not a step is relabelled
        assert abs(furthest - ratio / 5) < 0.06
    with pytest.raises(ConfigError, match=r"ratio=1.5 must lie in \[0, 1\]"):
        relabel(walk(), jnp.ones(5, bool), jax.random.key(0), ratio=1.5)
    with pytest.raises(ValueError, match=r"mask has shape \(4,\), expected \(5,\)"):
        relabel(walk(), jnp.ones(4, bool), jax.random.key(0))


def gradient_step(ratio, static, state, sample, schedules, key):
    """DQN's, on the first steps of slices that hold the rest of their episode, relabelled."""
    step_key, key = jax.random.split(key)
    keys = jax.random.split(key, sample.weight.size)
    item = jax.vmap(partial(relabel, ratio=ratio))(sample.item, sample.mask, keys)
    first = Sample(jax.tree.map(lambda x: x[:, 0], item), sample.index, sample.weight, sample.mask[:, 0])
    return dqn.gradient_step(static, state, first, schedules, step_key)


def update(ratio, static, state, rollout, key):
    state = off_policy.store(static, state, rollout)
    return off_policy.learn(static, partial(gradient_step, ratio), state, key, rollout.reward.size)


def success(ratio):
    """Share of episodes that reach the goal after a short training."""
    env, params = envs.make("Probe-BitFlip", length=LENGTH)
    config = dqn.Config(hidden_sizes=(64,), capacity=16_384, batch_size=128, learning_starts=256, replay_ratio=0.125)
    agent = dqn.make(config, env.observation_space(params), env.action_space(params))
    static = agent.static._replace(buffer=replay.slices(16_384, 128, LENGTH, strict=False))
    agent = agent._replace(init=partial(dqn.init, static), update=partial(update, ratio, static))
    pair = training.make(agent, env, params, num_envs=16, num_steps=8)
    hyper = dqn.Hyper(learning_rate=1e-3, tau=0.02, gamma=0.95)
    state, _ = jax.jit(lambda key: jax.lax.scan(lambda s, _: pair.step(s), pair.init(hyper, key), None, 250))(
        jax.random.key(0)
    )
    played = jax.jit(lambda actor, key: training.evaluate(agent, env, params, actor, key, num_envs=128))(
        agent.actor(state.agent), jax.random.key(1)
    )
    return float((played.returns > -LENGTH).mean())


@pytest.mark.slow
def test_bits_are_learned_only_with_relabelling():
    with_hindsight, without = success(0.8), success(0.0)
    assert with_hindsight > 0.9, (with_hindsight, without)
    assert without < 0.3, (with_hindsight, without)

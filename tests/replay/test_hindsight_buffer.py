"""The buffer that relabels what it draws, against a plain Python model of its episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import replay
from rlkit.replay import hindsight, shards
from rlkit.types import ConfigError, Transition

ENVS, ROWS, BATCH = 2, 12, 256


def outcome(reached, goal):
    equal = (reached == goal).all()
    return jnp.where(equal, 0.0, -1.0), equal


class Streams:
    """Environments whose achieved goal is (environment, number of the step), so that it names a step; goals are -1."""

    def __init__(self, seed):
        self.rng, self.time = np.random.default_rng(seed), np.zeros(ENVS, int)
        self.episode, self.steps = np.zeros(ENVS, int), {}  # (env, time of next_obs) -> (number of the row, episode)
        self.rows = 0

    def rollout(self, num_steps):
        columns = {name: [] for name in ("at", "next", "terminated", "truncated")}
        for _ in range(num_steps):
            at = np.stack([np.arange(ENVS), self.time], 1)
            self.time += 1
            ends = self.rng.random(ENVS) < 0.25
            kind = self.rng.random(ENVS) < 0.5
            for env in range(ENVS):
                self.steps[env, self.time[env]] = (self.rows, self.episode[env])
            columns["at"].append(at)
            columns["next"].append(np.stack([np.arange(ENVS), self.time], 1))
            columns["terminated"].append(ends & kind)
            columns["truncated"].append(ends & ~kind)
            self.episode += ends
            self.time += 100 * ends  # after a reset
            self.rows += 1
        at, following, terminated, truncated = (np.stack(x) for x in columns.values())
        goal = np.full(at.shape, -1.0, np.float32)

        def obs(x):
            return {"achieved_goal": x.astype(np.float32), "desired_goal": goal}

        reward = -np.ones(terminated.shape, np.float32)
        return Transition(obs(at), terminated.astype(np.int32), reward, terminated, truncated, obs(following))

    def future(self, env, time):
        """Times of the goals that the episode of a step reached from it on; None where its start is overwritten."""
        row, episode = self.steps[env, time]
        of_episode = {t: r for (e, t), (r, number) in self.steps.items() if (e, number) == (env, episode)}
        if min(of_episode.values()) < self.rows - ROWS:
            return None
        return {t for t, r in of_episode.items() if r >= row}


def test_goals_are_those_that_the_episode_reaches_from_the_step_on():
    buffer = hindsight.buffer(ROWS * ENVS, BATCH, reward_fn=outcome, ratio=1.0)
    streams = Streams(0)
    state = buffer.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), streams.rollout(1)), ENVS)
    streams = Streams(1)
    sample, add, kept, seen = jax.jit(buffer.sample), jax.jit(buffer.add), 0, 0
    for index, num_steps in enumerate([1, 5, 1, 12, 1, 5, 1, 1, 5, 5, 12]):
        state = add(state, streams.rollout(num_steps))
        item = sample(state, jax.random.key(index)).item
        counts = {}
        for i in range(BATCH):
            env, time = (int(x) for x in item.next_obs["achieved_goal"][i])
            goal, future = np.asarray(item.obs["desired_goal"][i]), streams.future(env, time)
            np.testing.assert_array_equal(goal, item.next_obs["desired_goal"][i])
            if future is None:
                assert (goal == -1).all()
                kept += 1
                continue
            assert goal[0] == env
            assert goal[1] in future
            success = goal[1] == time
            assert item.terminated[i] == success
            assert item.reward[i] == (0.0 if success else -1.0)
            counts.setdefault((env, time), []).append(goal[1])
        for (env, time), goals in counts.items():
            future = streams.future(env, time)
            if len(goals) > 12 * len(future):
                assert set(goals) == future
                seen += len(future) > 1
    assert kept
    assert seen


def test_the_share_that_is_relabelled():
    buffer = hindsight.buffer(64, 4096, reward_fn=outcome, ratio=0.8)
    rollout = Streams(2).rollout(32)
    state = jax.jit(buffer.add)(buffer.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rollout), ENVS), rollout)
    goal = jax.jit(buffer.sample)(state, jax.random.key(0)).item.obs["desired_goal"]
    assert abs(float((goal[:, 1] >= 0).mean()) - 0.8) < 0.03
    with pytest.raises(ConfigError, match="ratio=2 must lie in"):
        hindsight.buffer(64, 8, reward_fn=outcome, ratio=2)


def test_a_cleared_buffer_knows_no_old_episode():
    buffer, streams = hindsight.buffer(ROWS * ENVS, BATCH, reward_fn=outcome, ratio=1.0), Streams(3)
    first, add = streams.rollout(8), jax.jit(buffer.add)
    state = add(buffer.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), first), ENVS), first)
    state = add(replay.clear(state), streams.rollout(8))
    goals = np.asarray(jax.jit(buffer.sample)(state, jax.random.key(0)).item.obs["desired_goal"])
    newest = {(env, time) for (env, time), (row, _) in streams.steps.items() if row >= 8}
    assert {(int(env), int(time)) for env, time in goals} <= newest


def test_a_buffer_on_two_devices_is_one_on_one_and_back():
    buffer = hindsight.buffer(ROWS * ENVS, BATCH, reward_fn=outcome, ratio=1.0)
    rollout = Streams(4).rollout(7)
    example = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rollout)
    add = jax.jit(buffer.add)
    whole = add(buffer.init(example, ENVS), rollout)
    half = hindsight.buffer(ROWS, BATCH, reward_fn=outcome).init(example, 1)
    parts = shards.divide([whole], half, 2)
    for env, part in enumerate(parts):
        alone = add(half, jax.tree.map(lambda x, env=env: x[:, env : env + 1], rollout))
        jax.tree.map(np.testing.assert_array_equal, part, alone)
    (back,) = shards.divide(parts, buffer.init(example, ENVS), 1)
    jax.tree.map(np.testing.assert_array_equal, back, whole)

"""Rollouts of environments outside of JAX: order of transitions, truncation at failures, autoreset modes."""

from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_envs import Counter, Noise
from mistakes import mistake

from rlkit import hosts
from rlkit.hosts.collect import Collector, NotFinite
from rlkit.hosts.pool import Episodes, Step
from rlkit.spaces import Box, Discrete
from rlkit.types import Agent, ConfigError

pytestmark = pytest.mark.thorough
KEY = jax.random.key(0)


def act(actor, memory, obs, key):
    """Return action 0, and count the steps of the episode in the memory."""
    return memory + 1, jnp.zeros((), jnp.int32), memory


AGENT = Agent(init=None, actor=None, act=act, policy=act, update=None, memory=jnp.zeros((), jnp.int32))


def make_collector(pool, num_steps, *, hold=False, agent=AGENT):
    collector = Collector(agent, pool, num_steps=num_steps, device=jax.devices()[0], hold=hold)
    collector.compile(jnp.zeros(()), KEY)
    return collector


def collect_joined(collector, rollouts):
    """Collect several rollouts and join them along time: transitions, returns, lengths.

    Each rollout must stay unchanged until the next one has been collected: an update may be reading it.
    """
    parts, previous = [], None
    for _ in range(rollouts):
        collected = collector.collect(jnp.zeros(()), KEY)
        if parts:
            jax.tree.map(np.testing.assert_array_equal, previous, parts[-1])
        previous = collected.transitions, collected.returns, collected.lengths
        parts.append(jax.tree.map(np.copy, previous))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def check_joined(steps, returns, lengths):
    """Check that each row continues the one before exactly where that row does not end an episode."""
    done = steps.terminated | steps.truncated
    follows = (steps.obs[1:] == steps.next_obs[:-1]).all(-1)
    np.testing.assert_array_equal(follows[done[:-1]], False)
    np.testing.assert_array_equal(follows[~done[:-1]], True)
    np.testing.assert_array_equal(steps.next_obs[..., 1], steps.obs[..., 1] + 1)
    np.testing.assert_array_equal(steps.next_obs[..., 0], steps.obs[..., 0])
    np.testing.assert_array_equal(steps.reward, steps.next_obs[..., 1])
    np.testing.assert_array_equal(lengths > 0, np.isfinite(returns))


@pytest.mark.parametrize("hold", [False, True])
def test_rollouts_follow_one_another(hold):
    with hosts.make("host_envs:Counter", num_envs=3, backend="serial", later=1) as pool:
        collector = make_collector(pool, 4, hold=hold)
        collector.begin(0)
        steps, returns, lengths = collect_joined(collector, 5)
    check_joined(steps, returns, lengths)
    assert steps.obs.shape == (20, 3, 3)
    np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])  # the memory is reset with each episode
    assert lengths[:, 0].nonzero()[0].tolist() == [2, 6, 11, 17]
    assert returns[17, 0] == 21
    assert not np.shares_memory(collector.buffers[0][0], collector.buffers[1][0])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_every_autoreset_mode(mode):
    """Check that no row joins two episodes and that each real step is one row, in order."""
    makers = [partial(Counter, 3), partial(Counter, 4, "terminated")]
    autoreset = gymnasium.vector.AutoresetMode[mode]
    with hosts.from_vector(lambda: gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=autoreset)) as pool:
        collector = make_collector(pool, 5)
        collector.begin(0)
        steps, returns, lengths = collect_joined(collector, 4)
        check_joined(steps, returns, lengths)
        np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])
        for env, length in ((0, 3), (1, 4)):
            np.testing.assert_array_equal(steps.obs[:, env, 1], np.arange(20) % length)
            np.testing.assert_array_equal(steps.obs[:, env, 0], np.arange(20) // length)
        assert not steps.terminated[:, 0].any()
        assert not steps.truncated[:, 1].any()
        assert pool.action_space == Discrete(3)


def test_a_vector_environment_may_write_into_its_rewards_at_a_reset():
    class Zeroing(gymnasium.vector.SyncVectorEnv):
        def step(self, actions):
            obs, self.rewards, *rest = super().step(actions)
            return obs, self.rewards, *rest

        def reset(self, **arguments):
            self.rewards = getattr(self, "rewards", np.zeros(1))
            self.rewards[:] = 0
            return super().reset(**arguments)

    mode = gymnasium.vector.AutoresetMode.DISABLED
    with hosts.from_vector(lambda: Zeroing([partial(Counter, 2)], autoreset_mode=mode)) as pool:
        pool.reset()
        assert [pool.step(np.zeros(1, np.int32)).reward.tolist() for _ in range(3)] == [[1], [2], [1]]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_autoreset_of_nested_observations(mode):
    """Compare with the environment itself; final observations are read from the infos leaf by leaf."""
    autoreset = gymnasium.vector.AutoresetMode[mode]
    with hosts.from_vector(lambda: gymnasium.vector.SyncVectorEnv([Noise], autoreset_mode=autoreset)) as pool:
        env = Noise()
        obs, _ = env.reset(seed=3)
        current = pool.reset(3)
        action = np.zeros((1, 2), np.float32)
        for _ in range(40):
            step = pool.step(action)
            if not step.real[0]:
                current = step.obs
                continue
            np.testing.assert_array_equal(current["x"][0], obs["x"])
            obs, reward, terminated, truncated, _ = env.step(action[0])
            np.testing.assert_array_equal(step.next_obs["x"][0], obs["x"])
            assert step.next_obs["kind"][0] == obs["kind"] + 2
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == (
                np.float32(reward),
                terminated,
                truncated,
            )
            if terminated or truncated:
                obs, _ = env.reset()
            current = step.obs


class Scripted:
    """A pool whose steps are real except for the (time, environment) in `breaks`."""

    name, restarted = "scripted", 0
    observation_space, action_space = Box(0, np.inf, (3,)), Discrete(2)

    def __init__(self, num_envs, breaks, *, lockstep=True, bad=None):
        self.num_envs, self.first, self.breaks, self.lockstep, self.bad = num_envs, 0, set(breaks), lockstep, bad
        self.interrupted = lambda: False

    def locate(self, env):
        return f"environment {env} of the script"

    def reset(self, seed=None):
        self.obs, self.time, self.episodes = np.zeros((self.num_envs, 3), np.float32), 0, Episodes(self.num_envs)
        return self.obs.copy()

    def step(self, actions, copy=True):
        real = np.array([(self.time, env) not in self.breaks for env in range(self.num_envs)])
        following = self.obs + np.array([0, 1, 0], np.float32)
        broken = self.obs * np.array([1, 0, 0], np.float32) + np.array([1, 0, 0], np.float32)
        done = np.zeros(self.num_envs, bool)
        self.obs, self.time = np.where(real[:, None], following, broken), self.time + 1
        reward = following[:, 1].copy()
        if self.bad == self.time:
            reward[1] = np.nan
        returns, lengths = self.episodes.step(reward, done, real)
        none = np.full(self.num_envs, np.nan, np.float32)
        return Step(self.obs.copy(), reward, done, done.copy(), following, real, returns.copy(), lengths.copy(), none)


@pytest.mark.parametrize("hold", [False, True])
def test_a_failure_truncates_the_last_real_step(hold):
    pool = Scripted(2, [(3, 1), (4, 1)])
    collector = make_collector(pool, 4, hold=hold)
    collector.begin(0)
    steps, returns, lengths = collect_joined(collector, 3)
    check_joined(steps, returns, lengths)
    assert np.argwhere(steps.truncated).tolist() == [[2, 1]]
    assert steps.obs[:, 0, 1].tolist() == list(range(12))
    assert steps.obs[:, 1, 1].tolist() == [0, 1, 2, *range(9)]
    assert steps.obs[3, 1, 0] == 2  # the episode that failed at once has left no row
    np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])


def test_a_failure_between_two_rollouts():
    """With `hold` the step before the failure opens the next rollout, truncated; without, it was returned before."""
    for hold in (True, False):
        collector = make_collector(Scripted(2, [(4, 0), (5, 1)]), 4, hold=hold)
        collector.begin(0)
        steps, *_ = collect_joined(collector, 2)
        assert np.argwhere(steps.truncated).tolist() == ([[3, 0], [4, 1]] if hold else [[4, 1]])


def test_held_steps_are_truncated_by_a_new_collector():
    """Check that a resumed run does not join two episodes either; the steps are part of its checkpoint."""
    collector = make_collector(Scripted(2, []), 4, hold=True)
    collector.begin(0)
    held = jax.tree.map(np.copy, collector.collect(jnp.zeros(()), KEY).held)
    assert held.obs[:, 1].tolist() == [4, 4]
    assert not held.truncated.any()
    again = make_collector(Scripted(2, []), 4, hold=True)
    again.begin(0, held)
    steps, *_ = collect_joined(again, 1)
    assert steps.obs[:, 0, 1].tolist() == [4, 0, 1, 2]
    assert steps.truncated[:, 0].tolist() == [True, False, False, False]
    ended = held._replace(terminated=np.array([True, False]))
    again.begin(0, ended)
    assert collect_joined(again, 1)[0].truncated[0].tolist() == [False, True]


def test_an_environment_that_is_far_ahead_is_truncated():
    """Environment 1 has real steps half of the time: the surplus of the other is bounded, and its episodes are cut."""
    collector = make_collector(Scripted(2, [(time, 1) for time in range(0, 400, 2)], lockstep=False), 4, hold=True)
    collector.begin(0)
    steps, *_ = collect_joined(collector, 8)
    done = steps.terminated | steps.truncated
    follows = (steps.obs[1:] == steps.next_obs[:-1]).all(-1)
    np.testing.assert_array_equal(follows, ~done[:-1])
    assert done[:, 0].any()
    assert done[:, 1].all()
    assert collector.rows == 9


def test_not_a_number():
    collector = make_collector(Scripted(3, [], bad=6), 4)
    collector.begin(0)
    collector.collect(jnp.zeros(()), KEY)
    with pytest.raises(NotFinite, match=r"reward of environment 1 of the script, nan,"):
        collector.collect(jnp.zeros(()), KEY)


def test_acting_differs_between_environments_and_steps():
    def explore(actor, memory, obs, key):
        return memory, jax.random.randint(key, (), 0, 1 << 30), ()

    collector = make_collector(Scripted(5, []), 8, agent=AGENT._replace(act=explore))
    collector.begin(0)
    first = collector.collect(jnp.zeros(()), KEY).transitions.action.copy()
    assert len(np.unique(first)) == 40
    assert not np.array_equal(collector.collect(jnp.zeros(()), jax.random.key(1)).transitions.action, first)


def test_faulty_vector_environments():
    """Another batch size or dtype than declared is an error of one line with the expected and the actual one."""

    class Wrong(gymnasium.vector.SyncVectorEnv):
        how = "batch"

        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            if self.how == "batch":
                return obs[:1], reward, *rest
            return (obs.astype(np.float32), reward, *rest) if self.how == "dtype" else (obs, reward[:1], *rest)

    for how, message in (
        ("batch", "obs of step: expected float64[2, 3], as single_observation_space declares, got float64[1, 3]"),
        ("dtype", "got float32[2, 3]"),
        ("reward", "reward: expected one for each of 2 environments, got [1]"),
    ):
        with hosts.from_vector(lambda: Wrong([Counter, Counter])) as pool:
            pool.envs.how = how
            pool.reset()
            with mistake(message):
                pool.step(np.zeros(2, np.int32))


@pytest.mark.parametrize(("mode", "name"), [("SameStep", "SAME_STEP"), ("DISABLED", "DISABLED"), (None, "NEXT_STEP")])
def test_an_autoreset_mode_may_be_a_word(mode, name):
    """A vector environment of another library may have Gymnasium's words for the modes instead of its enum."""

    class Words(gymnasium.vector.SyncVectorEnv):
        def __init__(self):
            super().__init__([Counter])
            self.metadata = {"autoreset_mode": mode}

    with hosts.from_vector(Words) as pool:
        assert (pool.mode, pool.lockstep) == (name, name != "NEXT_STEP")


def test_vector_environments_that_are_none(monkeypatch):
    made = gymnasium.vector.SyncVectorEnv([Counter])
    with pytest.raises(ConfigError, match=r"^envs must be a function, .* it is a SyncVectorEnv; add lambda"):
        hosts.from_vector(made)
    closed = []
    monkeypatch.setattr(Counter, "close", lambda self: closed.append(self))
    with pytest.raises(ConfigError, match=r"must be a vector environment, and Counter has no num_envs; use .*make_vec"):
        hosts.from_vector(Counter)
    assert len(closed) == 1
    with pytest.raises(ConfigError, match="must be a vector environment, and list has no num_envs"):
        hosts.from_vector(list)
    made.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(ConfigError, match=r"autoreset_mode.*: expected NEXT_STEP or SAME_STEP or DISABLED, got 'some"):
        hosts.from_vector(lambda: made)

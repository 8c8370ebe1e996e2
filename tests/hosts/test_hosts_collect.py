"""Rollouts of environments outside of JAX: real transitions in order, cuts where a worker failed, autoreset modes."""

from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_envs import Counter, Noise

from rlkit import hosts
from rlkit.hosts.collect import Collector, NotFinite
from rlkit.hosts.pool import Episodes, Step
from rlkit.spaces import Box, Discrete
from rlkit.types import Agent, ConfigError

KEY = jax.random.key(0)


def act(actor, memory, obs, key):
    """Acts 0, and counts the steps of the episode in its memory."""
    return memory + 1, jnp.zeros((), jnp.int32), memory


AGENT = Agent(init=None, actor=None, act=act, policy=act, update=None, memory=jnp.zeros((), jnp.int32))


def collector(pool, num_steps, *, hold=False, agent=AGENT):
    made = Collector(agent, pool, num_steps=num_steps, device=jax.devices()[0], hold=hold)
    made.compile(jnp.zeros(()), KEY)
    return made


def streams(made, rollouts):
    """The transitions of some rollouts, one after the other: obs, next_obs, terminated, truncated, extras.

    Each has to stay as it was until the rollout after it is there: an update may be reading it.
    """
    parts, before = [], None
    for _ in range(rollouts):
        found = made.collect(jnp.zeros(()), KEY)
        if parts:
            jax.tree.map(np.testing.assert_array_equal, before, parts[-1])
        before = found.transitions, found.returns, found.lengths
        parts.append(jax.tree.map(np.copy, before))
    return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def check_streams(steps, returns, lengths):
    """Within an episode one row follows the other; where none follows, the row says that it was the last."""
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
        made = collector(pool, 4, hold=hold)
        made.begin(0)
        steps, returns, lengths = streams(made, 5)
    check_streams(steps, returns, lengths)
    assert steps.obs.shape == (20, 3, 3)
    np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])  # the memory begins anew with each episode
    assert lengths[:, 0].nonzero()[0].tolist() == [2, 6, 11, 17]
    assert returns[17, 0] == 21
    assert not np.shares_memory(made.buffers[0][0], made.buffers[1][0])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_every_autoreset_mode(mode):
    """Staggered ends: no row joins two episodes, each true step is one row, in order."""
    made_of = [partial(Counter, 3), partial(Counter, 4, "terminated")]
    autoreset = gymnasium.vector.AutoresetMode[mode]
    with hosts.from_vector(lambda: gymnasium.vector.SyncVectorEnv(made_of, autoreset_mode=autoreset)) as pool:
        made = collector(pool, 5)
        made.begin(0)
        steps, returns, lengths = streams(made, 4)
        check_streams(steps, returns, lengths)
        np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])
        for env, length in ((0, 3), (1, 4)):
            np.testing.assert_array_equal(steps.obs[:, env, 1], np.arange(20) % length)
            np.testing.assert_array_equal(steps.obs[:, env, 0], np.arange(20) // length)
        assert not steps.terminated[:, 0].any()
        assert not steps.truncated[:, 1].any()
        assert pool.action_space == Discrete(3)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_autoreset_of_nested_observations(mode):
    """The final observation comes out of the infos leaf by leaf; everything is as in a pool with that seed."""
    autoreset = gymnasium.vector.AutoresetMode[mode]
    with hosts.from_vector(lambda: gymnasium.vector.SyncVectorEnv([Noise], autoreset_mode=autoreset)) as pool:
        env = Noise()
        obs, _ = env.reset(seed=3)
        seen = pool.reset(3)
        action = np.zeros((1, 2), np.float32)
        for _ in range(40):
            step = pool.step(action)
            if not step.real[0]:
                seen = step.obs
                continue
            np.testing.assert_array_equal(seen["x"][0], obs["x"])
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
            seen = step.obs


class Scripted:
    """A pool of which each step says whether it was real: `breaks` holds (time, env)."""

    name, restarted = "scripted", 0
    observation_space, action_space = Box(0, np.inf, (3,)), Discrete(2)

    def __init__(self, num_envs, breaks, *, lockstep=True, bad=None):
        self.num_envs, self.breaks, self.lockstep, self.bad = num_envs, set(breaks), lockstep, bad
        self.interrupted = lambda: False

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
        return Step(self.obs.copy(), reward, done, done.copy(), following, real, returns.copy(), lengths.copy())


@pytest.mark.parametrize("hold", [False, True])
def test_a_break_cuts_the_last_real_step(hold):
    pool = Scripted(2, [(3, 1), (4, 1)])
    made = collector(pool, 4, hold=hold)
    made.begin(0)
    steps, returns, lengths = streams(made, 3)
    check_streams(steps, returns, lengths)
    assert np.argwhere(steps.truncated).tolist() == [[2, 1]]
    assert steps.obs[:, 0, 1].tolist() == list(range(12))
    assert steps.obs[:, 1, 1].tolist() == [0, 1, 2, *range(9)]
    assert steps.obs[3, 1, 0] == 2  # the episode that broke at once has left no row
    np.testing.assert_array_equal(steps.extras, steps.obs[..., 1])


def test_a_break_between_two_rollouts():
    """What is held back opens the next rollout, cut; without that the rollout before has gone already."""
    for hold in (True, False):
        made = collector(Scripted(2, [(4, 0), (5, 1)]), 4, hold=hold)
        made.begin(0)
        steps, *_ = streams(made, 2)
        assert np.argwhere(steps.truncated).tolist() == ([[3, 0], [4, 1]] if hold else [[4, 1]])


def test_what_was_held_back_ends_where_a_new_collector_begins():
    """A checkpoint keeps it, so that a resumed run joins no two episodes either."""
    made = collector(Scripted(2, []), 4, hold=True)
    made.begin(0)
    held = jax.tree.map(np.copy, made.collect(jnp.zeros(()), KEY).held)
    assert held.obs[:, 1].tolist() == [4, 4]
    assert not held.truncated.any()
    again = collector(Scripted(2, []), 4, hold=True)
    again.begin(0, held)
    steps, *_ = streams(again, 1)
    assert steps.obs[:, 0, 1].tolist() == [4, 0, 1, 2]
    assert steps.truncated[:, 0].tolist() == [True, False, False, False]
    ended = held._replace(terminated=np.array([True, False]))
    again.begin(0, ended)
    assert streams(again, 1)[0].truncated[0].tolist() == [False, True]


def test_one_that_is_far_ahead_waits_with_a_cut():
    """Environment 1 is real half of the time: the surplus of the other is bounded, and what is dropped is cut off."""
    made = collector(Scripted(2, [(time, 1) for time in range(0, 400, 2)], lockstep=False), 4, hold=True)
    made.begin(0)
    steps, *_ = streams(made, 8)
    done = steps.terminated | steps.truncated
    follows = (steps.obs[1:] == steps.next_obs[:-1]).all(-1)
    np.testing.assert_array_equal(follows, ~done[:-1])
    assert done[:, 0].any()
    assert done[:, 1].all()
    assert made.rows == 9


def test_not_a_number():
    made = collector(Scripted(3, [], bad=6), 4)
    made.begin(0)
    made.collect(jnp.zeros(()), KEY)
    with pytest.raises(NotFinite, match=r"reward of environment 1, nan,"):
        made.collect(jnp.zeros(()), KEY)


def test_acting_differs_between_environments_and_steps():
    def explore(actor, memory, obs, key):
        return memory, jax.random.randint(key, (), 0, 1 << 30), ()

    made = collector(Scripted(5, []), 8, agent=AGENT._replace(act=explore))
    made.begin(0)
    first = made.collect(jnp.zeros(()), KEY).transitions.action.copy()
    assert len(np.unique(first)) == 40
    assert not np.array_equal(made.collect(jnp.zeros(()), jax.random.key(1)).transitions.action, first)


def test_faulty_vector_environments():
    """Another batch size or dtype than said is one line that names what was expected and what came."""

    class Wrong(gymnasium.vector.SyncVectorEnv):
        how = "batch"

        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            if self.how == "batch":
                return obs[:1], reward, *rest
            return (obs.astype(np.float32), reward, *rest) if self.how == "dtype" else (obs, reward[:1], *rest)

    for how, said in (
        ("batch", r"obs of step: expected float64\[2, 3\], as single_observation_space says, got float64\[1, 3\]"),
        ("dtype", r"obs of step: expected float64\[2, 3\], as single_observation_space says, got float32\[2, 3\]"),
        ("reward", r"reward: expected one for each of 2 environments, got \[1\]"),
    ):
        with hosts.from_vector(lambda: Wrong([Counter, Counter])) as pool:
            pool.envs.how = how
            pool.reset()
            with pytest.raises(ConfigError, match=said):
                pool.step(np.zeros(2, np.int32))

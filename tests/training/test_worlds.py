"""Worlds of several players: their streams, episodes, memories and wrappers, against worlds stepped one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter
from jax.sharding import AbstractMesh
from mistakes import mistake

from rlkit import envs, training
from rlkit.agents import ppo
from rlkit.envs import wrappers
from rlkit.envs.probes import Players
from rlkit.runs import metrics, scores
from rlkit.types import Agent, ConfigError

P, N, T = 3, 6, 12


def random_agent():
    """Plays random legal actions; its memory counts its steps, and is kept in the extras."""

    def act(actor, memory, obs, key):
        action = jax.random.randint(key, (), 0, 2)
        return memory + 1, jnp.where(obs["action_mask"][action], action, 0), memory

    return Agent(init=None, actor=lambda s: s, act=act, policy=act, update=None, memory=np.int32(0))


def test_streams_are_the_players_of_worlds_that_are_stepped_alone():
    env, agent = Players(), random_agent()
    keys = jax.random.split(jax.random.key(1), T * 2 * N).reshape(T, 2, N)
    reset_keys = jax.random.split(jax.random.key(0), N)
    start = training.reset(agent, env, (), reset_keys, N)
    _, steps, episodes = jax.jit(lambda s, k: training.rollout(agent, env, (), (), s, k, T))(start, keys)
    for world in range(N // P):
        mine = slice(world * P, world * P + P)
        obs, state = env.reset(reset_keys[world * P])
        for t in range(T):
            jax.tree.map(lambda x, y, t=t, mine=mine: np.testing.assert_array_equal(x, y[t, mine]), obs, steps.obs)
            obs, state, *signals, info = env.step(keys[t, 1, world * P], state, steps.action[t, mine])
            for signal, name in zip(signals, ("reward", "terminated", "truncated"), strict=True):
                np.testing.assert_array_equal(signal, getattr(steps, name)[t, mine])
            np.testing.assert_array_equal(info["final_observation"]["obs"], steps.next_obs["obs"][t, mine])
    assert len({float(x) for x in steps.obs["obs"][0, :, 0]}) == 2  # not all cues are alike
    np.testing.assert_array_equal(steps.extras[:, 0], np.arange(T) % 3)  # the memory begins anew with each episode
    np.testing.assert_array_equal(steps.extras, np.broadcast_to(steps.extras[:, :1], (T, N)))
    assert (np.asarray(episodes.lengths) > 0).sum() == N * T // 3


def test_a_player_that_is_out_has_one_action_and_no_reward():
    *_, steps, _ = jax.jit(
        lambda key: training.rollout(
            random_agent(), Players(), (), (), training.reset(random_agent(), Players(), (), key, N), key, T
        )
    )(jax.random.key(0))
    out = (np.arange(T) % 3 > 0)[:, None] & (np.arange(N) % P == 2)
    np.testing.assert_array_equal(steps.obs["action_mask"][..., 1], ~out)
    assert (np.asarray(steps.action)[out] == 0).all()
    assert (np.asarray(steps.reward)[out] == 0).all()


def test_a_step_counts_an_episode_once_a_world():
    agent = ppo.make(
        ppo.Config(hidden_sizes=(4,), num_minibatches=1), Players().observation_space(), Players().action_space()
    )
    run = training.make(agent, Players(), (), num_envs=N, num_steps=3)
    state, line = jax.jit(lambda key: run.step(run.init(ppo.Hyper(), key)))(jax.random.key(0))
    assert int(line["num_episodes"]) == N // P
    assert line["lengths"].shape == (3, N)
    np.testing.assert_allclose(line["episode_return"], np.asarray(line["returns"])[-1].mean(), rtol=1e-6)
    assert jax.tree.leaves(state.envs.env_state)[0].shape[0] == N // P
    summary = metrics.summarize({name: np.asarray(x)[None] for name, x in line.items()}, 1, Players())
    assert summary["episodes"] == N // P
    assert summary["team_return_mean"] == pytest.approx(P * summary["return_mean"], rel=1e-6)


def test_an_evaluation_plays_whole_episodes_of_all_players():
    def evaluate(key):
        return training.evaluate(random_agent(), Players(), (), (), key, num_envs=N, episodes_per_env=2)

    result = jax.jit(evaluate)(jax.random.key(0))
    assert bool(result.finished.all())
    np.testing.assert_array_equal(result.lengths, 3)
    assert scores.summary(result, False, Players())["episodes"] == 2 * N // P
    assert scores.report(result, False, Players())["episodes"] == 2 * N // P


@pytest.mark.parametrize("num_envs", [1, 7])
def test_streams_of_part_of_a_world_are_refused(num_envs):
    agent = ppo.make(ppo.Config(), Players().observation_space(), Players().action_space())
    with pytest.raises(ConfigError, match=f"num_envs={num_envs} .*{P}"):
        training.make(agent, Players(), (), num_envs=num_envs, num_steps=3)


@pytest.mark.parametrize("num_envs", [9, 15])
def test_worlds_that_do_not_divide_over_the_devices_are_refused(num_envs):
    agent = ppo.make(
        ppo.Config(num_minibatches=1), Players().observation_space(), Players().action_space(), axis_name="data"
    )
    run = training.make(agent, Players(), (), num_envs=num_envs, num_steps=3)
    init = training.data_parallel(run, AbstractMesh((2,), ("data",)), "data").init
    below = num_envs // (2 * P) * 2 * P
    with mistake(f"num_envs={num_envs} ", f"{P}", "2 devices", f"try {below} or {below + 2 * P}"):
        jax.eval_shape(init, ppo.Hyper(), jax.random.key(0))


def test_the_interval_of_an_evaluation_is_over_worlds():
    """It is that of the means over the players of each world whose episode ended; of one player, nothing changes."""
    rng = np.random.default_rng(0)
    returns, done = rng.normal(size=(4, P, 2)).astype(np.float32), np.array([[True] * 2] * 3 + [[True, False]])
    means = returns.astype(np.float64).mean(1)[done].astype(np.float32)
    streams = returns.reshape(4 * P, 2), np.full((4 * P, 2), 3), np.repeat(done, P, 0), np.full((4 * P, 2), np.nan)
    found = scores.report(training.Evaluation(*streams), False, Players())
    assert [found["iqm"], *found["interval"]] == [float(x) for x in scores.iqm_and_interval(means)]
    assert (found["episodes"], found["unfinished"]) == (7, 1)
    assert found["mean"] == pytest.approx(means.mean(), rel=1e-6)
    alone = scores.report(training.Evaluation(*streams), False, Counter())
    every = streams[0][streams[2]]
    assert [alone["iqm"], *alone["interval"]] == [float(x) for x in scores.iqm_and_interval(every)]


class Twins:
    """Two players of a `Counter`, who must act alike; the second has twice the observation and thrice the reward."""

    num_players, name, shared_reward = 2, "Twins", True

    def reset(self, key, params):
        obs, state = Counter().reset(key, params)
        return self._both(obs), state

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, info = Counter().step(key, state, action[0], params)
        info = {"final_observation": self._both(info["final_observation"])}
        flags = (jnp.stack([flag, flag]) for flag in (terminated, truncated))
        return self._both(obs), state, jnp.stack([reward, 3 * reward]), *flags, info

    def observation_space(self, params):
        return Counter().observation_space(params)

    def action_space(self, params):
        return Counter().action_space(params)

    def _both(self, obs):
        return jnp.stack([obs, 2 * obs])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: wrappers.FrameStack(env, 3),
        lambda env: wrappers.TimeLimit(env, 3),
        lambda env: wrappers.ActionRepeat(env, 2),
        pytest.param(lambda env: wrappers.ScaleReward(env, 0.5), marks=pytest.mark.slow),
        pytest.param(wrappers.Flatten, marks=pytest.mark.slow),
    ],
)
def test_a_wrapper_treats_each_player_as_it_treats_a_single_one(wrap):
    def play(env, players):
        obs, state = env.reset(jax.random.key(0), ())

        def step(state, inputs):
            key, action = inputs
            action = action if players == 1 else jnp.stack([action, action])
            obs, state, reward, terminated, truncated, info = env.step(key, state, action, ())
            return state, (obs, reward, terminated, truncated, info["final_observation"])

        keys = jax.random.split(jax.random.key(1), 30)
        return obs, *jax.lax.scan(step, state, (keys, jax.random.randint(keys[0], (30,), 0, 3)))[1]

    alone = jax.jit(lambda: play(wrap(Counter()), 1))()
    twins = jax.jit(lambda: play(wrap(Twins()), 2))()
    assert wrap(Twins()).num_players == 2
    assert wrap(Twins()).shared_reward
    first, obs, reward, terminated, truncated, final = (np.asarray(x) for x in alone)
    np.testing.assert_array_equal(twins[0], np.stack([first, 2 * first]))
    np.testing.assert_array_equal(twins[1], np.stack([obs, 2 * obs], 1))
    np.testing.assert_allclose(twins[2], np.stack([reward, 3 * reward], 1))
    np.testing.assert_array_equal(twins[3], np.stack([terminated] * 2, 1))
    np.testing.assert_array_equal(twins[4], np.stack([truncated] * 2, 1))
    np.testing.assert_array_equal(twins[5], np.stack([final, 2 * final], 1))
    assert (terminated | truncated).sum() > 3


def test_previous_actions_and_rewards_are_those_of_the_player():
    env = wrappers.PreviousActionReward(Players())
    obs, state = env.reset(jax.random.key(0), ())
    assert obs["previous_action"].shape == (3, 2)
    obs, state, reward, *_ = env.step(jax.random.key(1), state, jnp.array([0, 1, 1]), ())
    np.testing.assert_array_equal(obs["previous_action"], [[1, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(obs["previous_reward"][:, 0], reward)
    for _ in range(2):
        obs, state, *_ = env.step(jax.random.key(1), state, jnp.array([0, 1, 0]), ())
    np.testing.assert_array_equal(obs["previous_action"], 0)  # of a new episode


def test_sticky_actions_are_drawn_for_each_player():
    env = wrappers.StickyAction(Twins(), 0.5)
    _, state = env.reset(jax.random.key(0), ())
    keys, actions = jax.random.split(jax.random.key(1), 200), jnp.tile(jnp.array([[1, 2], [2, 1]]), (100, 1))

    def step(state, inputs):
        *_, state = env.step(inputs[0], state, inputs[1], ())[:2]
        return state, (state.action, state.at_start)

    _, (taken, at_start) = jax.lax.scan(step, state, (keys, actions))
    stuck = np.asarray(taken != actions)[1:][~np.asarray(at_start)[:-1]]
    assert 0.3 < stuck.mean() < 0.7
    assert (stuck[:, 0] != stuck[:, 1]).any()
    np.testing.assert_array_equal(np.asarray(taken)[1:][np.asarray(at_start)[:-1]], actions[1:][at_start[:-1]])


def test_the_contract_of_several_players_is_checked():
    envs.check(Players(), (), jax.random.key(0))
    envs.check(wrappers.FrameStack(Players(), 2), (), jax.random.key(0))


class Apart(Players):
    """Player 0 ends its episodes alone."""

    def step(self, key, state, action, params=()):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated, truncated & (jnp.arange(3) == 0), info


class Flat(Players):
    """Its reward has no axis of players."""

    def step(self, key, state, action, params=()):
        obs, state, reward, *rest = super().step(key, state, action, params)
        return obs, state, reward.sum(), *rest


class Shared(Players):
    """An entry of its infos has no axis of players."""

    def step(self, key, state, action, params=()):
        *results, info = super().step(key, state, action, params)
        return *results, info | {"extra": {"success": jnp.bool_(True)}}


@pytest.mark.parametrize(
    ("env", "field"),
    [(Apart(), "terminated | truncated"), (Flat(), "reward"), (Shared(), "info['extra']['success']: expected")],
)
def test_a_broken_contract_of_several_players_is_named(env, field):
    with mistake(field):
        envs.check(env, (), jax.random.key(0))

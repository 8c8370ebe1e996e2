"""Starts from a pool: their distribution, keys, wrappers, players and renewal; and no reset is left in a rollout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counter_env import Counter
from flax import struct
from mistakes import mistake

from rlkit import envs, training
from rlkit.agents import ppo
from rlkit.envs import reset_pool, wrappers
from rlkit.envs.gymnax import GymnaxEnv
from rlkit.envs.probes import Players
from rlkit.envs.suites.legacy import FiveValues
from rlkit.spaces import Box, Discrete
from rlkit.types import Agent

N, T, K = 4, 8, 6


class State(struct.PyTreeNode):
    start: jax.Array  # [] float32, drawn at the start of an episode
    time: jax.Array
    key: jax.Array  # of random events


class Keyed:
    """Observes [its start, a random event by the key in its state]; an episode has three steps."""

    def reset_env(self, key, params):
        start = jnp.sin(jax.random.uniform(key))  # nothing else computes a sine: it marks a reset in a program
        state = State(start, jnp.zeros((), jnp.int32), jax.random.fold_in(key, 1))
        return jnp.stack([state.start, jnp.float32(0)]), state

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        obs = jnp.stack([state.start, jax.random.uniform(jax.random.fold_in(state.key, state.time))])
        return obs, state, state.start, state.time >= 3, {}

    def observation_space(self, params):
        return Box(0, 1, (2,))

    def action_space(self, params):
        return Discrete(2)


class KeyedEnv(FiveValues):
    def __init__(self):
        GymnaxEnv.__init__(self, "Keyed", Keyed())
        self.limit_field = None

    def observation_space(self, params):
        return self.env.observation_space(params)

    action_space = Keyed.action_space


def still():
    """An agent that chooses action 0."""
    act = lambda actor, memory, obs, key: (memory, jnp.zeros((), jnp.int32), ())  # noqa: E731
    return Agent(init=None, actor=lambda s: s, act=act, policy=act, update=None)


def learner(env, params=(), **settings):
    config = ppo.Config(hidden_sizes=(4,), num_minibatches=1, num_epochs=1)
    return ppo.make(config, env.observation_space(params), env.action_space(params), **settings)


def pooled(env, params=(), size=K, seed=0):
    starts = reset_pool.make_starts(env, params, jax.random.split(jax.random.key(seed), size))
    return reset_pool.from_pool(env), reset_pool.PoolParams(params, starts)


def play(env, params, num_envs, num_steps):
    def run(key):
        start = training.reset(still(), env, params, key, num_envs)
        return training.rollout(still(), env, params, (), start, key, num_steps)

    return jax.jit(run)(jax.random.key(3))


def test_every_start_is_drawn_as_often_by_streams_with_their_own_keys():
    env, params = pooled(KeyedEnv())
    _, steps, _ = play(env, params, 512, 6)
    begun = np.asarray(steps.obs)[::3, :, 0]  # [2, 512], the first steps of two episodes
    counts = [(begun == start).sum() for start in np.asarray(params.starts[0][:, 0])]
    assert sum(counts) == begun.size
    expected = begun.size / K
    assert ((np.array(counts) - expected) ** 2 / expected).sum() < 20.5  # chi-squared of 5 degrees: 0.1 %
    assert len(np.unique(begun[1][begun[0] == begun[0, 0]])) == K  # whatever the first start, the second may be any


def test_streams_that_share_a_start_share_no_random_events():
    env, params = pooled(KeyedEnv(), size=1)
    _, steps, _ = play(env, params, 64, 6)
    events = np.asarray(steps.next_obs)[..., 1]
    assert len(np.unique(events)) == events.size


def test_the_contract_is_kept_and_steps_within_an_episode_are_the_same():
    env = KeyedEnv()
    of_pool, params = pooled(env)
    envs.check(of_pool, params, jax.random.key(0))
    _, state = env.reset(jax.random.key(1), ())
    one, other = env.step(jax.random.key(2), state, 0, ()), of_pool.step(jax.random.key(2), state, 0, params)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y)


def test_wrappers_begin_their_own_states_at_a_start_of_the_pool():
    env = envs.wrap(KeyedEnv(), ["time_limit:2", "sticky_action:0.5", "frame_stack:2", "previous_action_reward"])
    of_pool, params = pooled(env)
    envs.check(of_pool, params, jax.random.key(0))
    final, steps, episodes = play(of_pool, params, N, 5)
    assert set(np.asarray(episodes.lengths).ravel()) == {0, 2}
    starts, frames = np.asarray(params.starts[0][:, 0]), np.asarray(steps.obs["obs"])[::2]
    assert np.isin(frames, np.append(starts, 0)).all()  # both frames are those of the start
    np.testing.assert_array_equal(frames[..., :2], frames[..., 2:])
    assert (np.asarray(steps.obs["previous_action"])[::2] == 0).all()
    assert isinstance(final.env_state, wrappers.FrameStackState)


def test_players_of_a_world_begin_in_one_start():
    env, params = pooled(Players(), size=4)
    envs.check(env, params, jax.random.key(0))
    run = training.make(learner(Players()), Players(), (), num_envs=6, num_steps=6, reset_pool=4)
    state = jax.jit(run.init)(ppo.Hyper(), jax.random.key(0))
    assert jax.tree.leaves(state.envs.env_state)[0].shape[0] == 2
    rows = np.asarray(state.starts[1].cue)
    assert all((cue == rows).all(1).any() for cue in np.asarray(state.envs.env_state.cue))
    assert int(jax.jit(run.step)(state)[1]["num_episodes"]) == 4


def test_an_update_renews_the_oldest_starts_in_turn():
    env = KeyedEnv()
    run = training.make(learner(env), env, (), num_envs=N, num_steps=T, reset_pool=33)  # 2 rows an update
    init, step = jax.jit(run.init), jax.jit(run.step)
    state = init(ppo.Hyper(), jax.random.key(0))
    seen, changed = set(np.asarray(state.starts[0][:, 0]).tolist()), []
    for _ in range(17):
        before, (state, _) = np.asarray(state.starts[0]), step(state)
        after = np.asarray(state.starts[0])
        changed.append(set(np.flatnonzero((before != after).any(1)).tolist()))
        seen |= set(after[:, 0].tolist())
    assert changed == [{2 * update % 33, (2 * update + 1) % 33} for update in range(17)]
    assert len(seen) == 33 + 34  # every new start is another one


def test_seeds_have_pools_of_their_own():
    env = KeyedEnv()
    run = training.make(learner(env), env, (), num_envs=N, num_steps=T, reset_pool=K)
    keys = jax.random.split(jax.random.key(0), 2)
    both = jax.jit(jax.vmap(lambda key: run.step(run.init(ppo.Hyper(), key))[0]))(keys)
    alone = jax.jit(lambda key: run.step(run.init(ppo.Hyper(), key))[0])(keys[1])
    np.testing.assert_array_equal(both.starts[0][1], alone.starts[0])
    np.testing.assert_array_equal(both.envs.obs[1], alone.envs.obs)
    assert both.starts[0].shape == (2, K, 2)
    assert len(np.unique(both.starts[0][..., 0])) == 2 * K


@pytest.mark.parametrize("size", [None, K])
def test_a_rollout_computes_no_reset_where_there_is_a_pool(size):
    env = envs.wrap(KeyedEnv(), ["time_limit:2", "frame_stack:2"])
    run = training.make(learner(env), env, (), num_envs=N, num_steps=T, reset_pool=size)
    state = jax.eval_shape(run.init, ppo.Hyper(), jax.random.key(0))
    program = jax.make_jaxpr(run.step)(state).jaxpr
    in_loops, outside = resets(program)
    assert (in_loops, outside) == ((2, 0) if size is None else (0, 1))  # of the environment and of the time limit


class OwnStep(KeyedEnv):
    """An environment whose step is not that of its `step_with`."""

    def step(self, key, state, action, params):
        return super().step(key, state, action, params)


class Twice(wrappers.Wrapper):
    """A wrapper of a user's own, which goes on after an end."""


def test_an_evaluation_of_one_episode_each_computes_no_reset_in_its_steps():
    key = jax.random.key(4)

    def evaluate(env, episodes=1):
        env = envs.wrap(env, ["time_limit:2", "frame_stack:2"])
        agent = learner(env)
        state = jax.eval_shape(training.make(agent, env, (), num_envs=N, num_steps=T).init, ppo.Hyper(), key)
        state = jax.tree.map(lambda x: jnp.full(x.shape, 0.1, x.dtype), agent.actor(state.agent))
        run = lambda actor: training.evaluate(agent, env, (), actor, key, num_envs=N, episodes_per_env=episodes)  # noqa: E731
        return resets(jax.make_jaxpr(run)(state).jaxpr), jax.jit(run)(state)

    counts, one = evaluate(KeyedEnv())
    assert counts == (0, 2)
    assert len(np.unique(one.returns)) == N
    for env, episodes in ((KeyedEnv(), 2), (OwnStep(), 1), (Twice(KeyedEnv()), 1)):
        counts, other = evaluate(env, episodes)
        assert counts == (2, 1)
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[:, :1]), one, other)


def test_a_step_without_its_step_with_has_no_pool():
    with mistake("reset_pool", "env='Keyed'", "step_with", "leave reset_pool out"):
        training.make(learner(OwnStep()), OwnStep(), (), num_envs=N, num_steps=T, reset_pool=K)


def resets(program, in_loop=False):
    """The sines of a program in its loops, and outside of them."""
    counts = np.zeros(2, int)
    for equation in program.eqns:
        name = equation.primitive.name
        counts[0 if in_loop else 1] += name == "sin"
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner := getattr(inner, "jaxpr", inner), "eqns"):
                counts += resets(inner, in_loop or name in ("scan", "while"))
    return tuple(counts.tolist())


@pytest.mark.parametrize("size", [0, -1, 1.5, True, 2**16 + 1])
def test_a_size_that_is_none(size):
    with mistake(f"reset_pool={size}", "must be"):
        training.make(learner(KeyedEnv()), KeyedEnv(), (), num_envs=N, num_steps=T, reset_pool=size)


def test_an_environment_that_only_resets_itself():
    env = envs.wrap(Counter(), ["time_limit:3"])
    with mistake("reset_pool", "env='Counter'", "step_with", "leave reset_pool out"):
        training.make(learner(env), env, (), num_envs=N, num_steps=T, reset_pool=K)

"""rlkit.training: rollouts against what each environment really did, and evaluation without bias."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import envs, training
from rlkit.agents import dqn, ppo
from rlkit.envs.probe_base import Probe
from rlkit.networks import as_network
from rlkit.ops.statistics import running_update
from rlkit.spaces import Box
from rlkit.types import Agent, ConfigError


@dataclass(frozen=True)
class Counter(Probe):
    """Observes (episode id, time). Episodes have one of two lengths, equally likely, and pay one return at the end."""

    lengths: tuple[int, int] = (3, 3)
    returns: tuple[float, float] = (0.0, 1.0)
    truncate: bool = False

    def _cue(self, key):
        return jax.random.randint(key, (), 0, 2**21)  # the id, whose last bit is the kind of the episode

    def _observe(self, state):
        return jnp.stack([state.cue, state.time]).astype(jnp.float32)

    def _done(self, state):
        return state.time >= jnp.asarray(self.lengths)[state.cue % 2]

    def _reward(self, state, action):
        is_last = self._done(state.replace(time=state.time + 1))
        return jnp.where(is_last, jnp.asarray(self.returns, jnp.float32)[state.cue % 2], 0.0)

    def _terminal(self, state):
        return jnp.array(not self.truncate)

    def observation_space(self, params):
        return Box(-np.inf, np.inf, (2,))


def blind_agent(memory=()):
    """Acts at random; its memory counts its steps, so that one that is not put back is seen."""

    def act(actor, memory, obs, key):
        after = memory + 1 if not isinstance(memory, tuple) else memory
        return after, jax.random.randint(key, (), 0, 2), memory

    return Agent(init=None, actor=lambda s: s, act=act, policy=act, update=None, memory=memory)


def played(agent, env, params=(), *, num_envs, num_steps):
    """What `training.rollout` returns, from the start."""

    @jax.jit
    def play(key):
        start = training.reset(agent, env, params, key, num_envs)
        return training.rollout(agent, env, params, (), start, jax.random.key(1), num_steps)

    return play(jax.random.key(0))


def evaluated(agent, env, **sizes):
    return jax.jit(lambda key: training.evaluate(agent, env, (), (), key, **sizes))(jax.random.key(0))


@pytest.mark.parametrize("truncate", [False, True])
def test_no_stored_pair_crosses_an_episode(truncate):
    agent, env = blind_agent(np.int32(0)), Counter(lengths=(3, 5), truncate=truncate)
    after, rollout, episodes = played(agent, env, num_envs=4, num_steps=40)
    np.testing.assert_array_equal(rollout.next_obs[..., 0], rollout.obs[..., 0])  # the same episode
    np.testing.assert_array_equal(rollout.next_obs[..., 1], rollout.obs[..., 1] + 1)  # one step later
    np.testing.assert_array_equal(rollout.extras, rollout.obs[..., 1])  # the memory starts anew with each episode
    done = np.asarray(rollout.terminated | rollout.truncated)
    assert not (rollout.terminated if truncate else rollout.truncated).any()
    np.testing.assert_array_equal(np.asarray(rollout.obs[1:, :, 1])[done[:-1]], 0)
    np.testing.assert_array_equal(np.asarray(episodes.lengths) > 0, done)
    np.testing.assert_array_equal(np.isfinite(np.asarray(episodes.returns)), done)
    lengths = np.asarray(rollout.next_obs[..., 1])[done]
    np.testing.assert_array_equal(np.asarray(episodes.lengths)[done], lengths)
    np.testing.assert_array_equal(np.asarray(episodes.returns)[done], np.where(lengths == 3, 0.0, 1.0))
    assert int(episodes.lengths.sum() + after.episode_length.sum()) == 4 * 40


def test_a_rollout_in_two_parts_goes_on_where_it_was():
    agent, env = blind_agent(np.int32(0)), Counter(lengths=(3, 5))
    state = jax.jit(lambda key: training.reset(agent, env, (), key, 2))(jax.random.key(0))
    rollout = jax.jit(lambda s, k: training.rollout(agent, env, (), (), s, k, 4))
    state, first, _ = rollout(state, jax.random.key(1))
    _, second, _ = rollout(state, jax.random.key(2))
    ended = np.asarray(first.terminated[-1])
    np.testing.assert_array_equal(np.asarray(second.obs[0])[~ended], np.asarray(first.next_obs[-1])[~ended])


def test_every_environment_draws_its_own_randomness():
    agent, env = blind_agent(), Counter()
    _, rollout, _ = played(agent, env, num_envs=16, num_steps=32)
    actions = np.asarray(rollout.action).T
    assert len(np.unique(actions, axis=0)) == 16
    assert len(np.unique(np.asarray(rollout.obs[..., 0]))) > 100  # each episode of each environment has its own id


def test_cartpole_final_observations_are_those_of_the_step():
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5)
    agent = blind_agent()
    _, rollout, _ = played(agent, env, params, num_envs=3, num_steps=12)
    assert bool(rollout.truncated[4].all())
    assert not bool(rollout.terminated.any())
    position, velocity = rollout.obs[..., 0], rollout.obs[..., 1]
    np.testing.assert_allclose(rollout.next_obs[..., 0], position + 0.02 * velocity, atol=1e-6)  # Euler, also at ends


def test_short_episodes_do_not_count_more():
    """Lengths 10 and 100, returns 0 and 1, half each: most of the first 128 to finish in 64 environments are short."""
    sizes = {"num_envs": 64, "episodes_per_env": 2}
    env = Counter(lengths=(10, 100), returns=(0.0, 1.0))
    result = evaluated(blind_agent(), env, **sizes)
    np.testing.assert_array_equal(result.finished, np.ones(tuple(sizes.values()), bool))
    assert abs(float(result.returns.mean()) - 0.5) < 0.13
    np.testing.assert_array_equal(result.lengths, np.where(np.asarray(result.returns) == 1, 100, 10))


def test_a_constant_return_is_that_exactly():
    env = Counter(lengths=(3, 3), returns=(3.0, 3.0))
    result = evaluated(blind_agent(), env, num_envs=4, episodes_per_env=3)
    np.testing.assert_array_equal(result.returns, 3)
    np.testing.assert_array_equal(result.lengths, 3)


def test_an_evaluation_plays_the_policy_with_a_new_memory_in_each_episode():
    class Echo(Counter):
        def step(self, key, state, action, params):
            obs, state, _, *others = super().step(key, state, action, params)
            return obs, state, action.astype(jnp.float32), *others

    agent = blind_agent(np.int32(0))._replace(policy=lambda actor, memory, obs, key: (memory + 1, memory, ()))
    result = evaluated(agent, Echo(), num_envs=2, episodes_per_env=3)
    np.testing.assert_array_equal(result.returns, 0 + 1 + 2)


def test_unfinished_episodes_are_not_returns():
    env = Counter(lengths=(3, 1000), returns=(3.0, 3.0))
    result = evaluated(blind_agent(), env, num_envs=16, max_steps=10)
    finished = np.asarray(result.finished)
    assert 0 < finished.sum() < 16
    np.testing.assert_array_equal(np.asarray(result.returns), np.where(finished, 3, 0))
    np.testing.assert_array_equal(np.asarray(result.lengths), np.where(finished, 3, 0))


def test_the_return_of_a_step_is_that_of_the_episodes_that_ended_in_it():
    env, params = Counter(lengths=(5, 5), returns=(1.0, 3.0)), ()
    agent = ppo.make(ppo.Config(hidden_sizes=(4,)), env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=4, num_steps=4)
    step = jax.jit(pair.step)
    state, metrics = step(jax.jit(pair.init)(ppo.Hyper(), jax.random.key(0)))
    assert metrics["num_episodes"] == 0
    assert np.isnan(metrics["episode_return"])
    assert np.isnan(metrics["returns"]).all()
    metrics = step(state)[1]
    assert (metrics["num_episodes"], metrics["episode_length"]) == (4, 5)
    assert metrics["episode_return"] == np.nanmean(metrics["returns"]) > 1


def test_evaluation_changes_nothing_and_normalizes_with_frozen_statistics():
    env, params = envs.make("CartPole-v1")
    config = ppo.Config(hidden_sizes=(4,), normalize_obs=True, normalize_reward=True)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    pair = training.make(agent, env, params, num_envs=4, num_steps=8)
    state, _ = jax.jit(lambda key: pair.step(pair.init(ppo.Hyper(), key)))(jax.random.key(0))
    actor = agent.actor(state.agent)
    evaluate = jax.jit(lambda a, k: training.evaluate(agent, env, params, a, k, num_envs=10, max_steps=100))
    first, second = evaluate(actor, jax.random.key(1)), evaluate(actor, jax.random.key(1))
    np.testing.assert_array_equal(first.returns, second.returns)
    assert float(actor.obs_stats.count) == 32


def test_an_evaluation_normalizes_with_the_statistics_that_it_was_given():
    """What the network sees of times 0 to 4 under a mean of 1 and a deviation of 2, from the first step to the last."""
    env, params, seen = Counter(lengths=(5, 5)), (), set()

    def look(x):
        seen.update(np.asarray(x).reshape(-1).tolist())

    def apply(params, obs):
        jax.debug.callback(look, obs[..., 1])
        return jnp.zeros((*obs.shape[:-1], 2)), jnp.zeros(obs.shape[:-1])

    network = (lambda key, obs: {"unused": jnp.zeros(())}, apply)
    config = ppo.Config(normalize_obs=True)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params), networks=network)
    pair = training.make(agent, env, params, num_envs=2, num_steps=8)
    actor = agent.actor(jax.jit(pair.init)(ppo.Hyper(), jax.random.key(0)).agent)
    obs = np.array([[1.0, -1.0], [1.0, 3.0]] * 50, np.float32)  # the mean and the deviation of the times: 1 and 2
    actor = actor._replace(obs_stats=running_update(actor.obs_stats, {"": jnp.asarray(obs)}))
    seen.clear()
    evaluate = jax.jit(lambda a, k: training.evaluate(agent, env, params, a, k, num_envs=3, max_steps=50))
    jax.block_until_ready(evaluate(actor, jax.random.key(1)))
    jax.effects_barrier()
    np.testing.assert_allclose(sorted(seen), [(time - 1) / 2 for time in range(5)], atol=1e-3)


def test_a_batch_that_cannot_be_divided_is_refused_before_anything_runs():
    env, params = envs.make("Probe-ConstantValue")
    agent = ppo.make(ppo.Config(num_minibatches=3), env.observation_space(params), env.action_space(params))
    with pytest.raises(ConfigError, match=r"num_minibatches=3 must divide"):
        training.make(agent, env, params, num_envs=4, num_steps=8)


@pytest.mark.parametrize("sizes", [{"num_envs": 0}, {"num_steps": 0}, {"num_envs": -4}, {"num_steps": 8.0}])
def test_sizes_that_are_no_positive_integers_are_refused(sizes):
    env, params = envs.make("Probe-ConstantValue")
    agent = dqn.make(dqn.Config(), env.observation_space(params), env.action_space(params))
    for make in (training.make, training.offline):
        with pytest.raises(ConfigError, match=f"^{next(iter(sizes))}=.* must be an integer of at least 1"):
            make(agent, env, params, **({"num_envs": 4, "num_steps": 8} | sizes))


def test_a_recurrent_network_of_the_users_divides_environments_into_minibatches():
    env, params = envs.make("Probe-ConstantValue")
    network = as_network(Remembering(), memory=np.zeros(4, np.float32))
    spaces = env.observation_space(params), env.action_space(params)
    agent = ppo.make(ppo.Config(num_minibatches=8), *spaces, network)
    with pytest.raises(ConfigError, match="num_minibatches=8 must divide num_envs = 4; try 4"):
        training.make(agent, env, params, num_envs=4, num_steps=8)


class Remembering(nn.Module):
    """Two logits, a value, and the next memory."""

    @nn.compact
    def __call__(self, obs, memory):
        memory = nn.tanh(nn.Dense(4)(jnp.concatenate([obs, memory], -1)))
        return nn.Dense(2)(memory), nn.Dense(1)(memory)[..., 0], memory


def test_schedules_end_with_the_steps_of_the_run():
    env, params = envs.make("CartPole-v1")
    agent = ppo.make(
        ppo.Config(learning_rate_schedule="linear"), env.observation_space(params), env.action_space(params)
    )
    sizes = {"num_envs": 2, "num_steps": 8}
    pair, endless = (
        training.make(agent, env, params, total_steps=64, **sizes),
        training.make(agent, env, params, **sizes),
    )
    key = jax.random.key(0)

    def steps(hyper):
        return jax.jit(jax.vmap(lambda hyper: pair.init(hyper, key).agent.hyper.schedule_steps))(hyper)

    each = jax.tree.map(lambda x: jnp.full(2, x, jnp.float32), ppo.Hyper())
    np.testing.assert_array_equal(steps(each), [64, 64])
    np.testing.assert_array_equal(steps(each.replace(schedule_steps=jnp.float32([jnp.inf, 32]))), [jnp.inf, 32])
    jax.eval_shape(lambda key: pair.init(ppo.Hyper(), key), key)
    with pytest.raises(ConfigError, match=r"or give training\.make total_steps"):
        jax.eval_shape(lambda key: endless.init(ppo.Hyper(), key), key)


def test_keys_of_the_old_kind_are_refused_in_one_line():
    env, params = envs.make("CartPole-v1")
    agent = ppo.make(ppo.Config(num_minibatches=1), env.observation_space(params), env.action_space(params))
    init, _ = training.make(agent, env, params, num_envs=2, num_steps=4)
    state = jax.jit(init)(ppo.Hyper(), jax.random.key(0))
    old, actor = jax.random.PRNGKey(0), agent.actor(state.agent)
    for call in (
        lambda: init(ppo.Hyper(), old),
        lambda: training.reset(agent, env, params, old, 2),
        lambda: training.rollout(agent, env, params, actor, state.envs, old, 4),
        lambda: training.evaluate(agent, env, params, actor, old, num_envs=2),
    ):
        with pytest.raises(ValueError, match=r"key is an array of uint32, .* make one with jax\.random\.key"):
            call()


def test_metrics_keep_their_dtypes_under_x64():
    env, params = envs.make("CartPole-v1")
    spaces = env.observation_space(params), env.action_space(params)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        init, step = training.make(
            ppo.make(ppo.Config(num_minibatches=1), *spaces), env, params, num_envs=2, num_steps=4
        )
        state = jax.eval_shape(init, ppo.Hyper(), jax.random.key(0))
        metrics = jax.eval_shape(step, state)[1]
    expected = {"episode_return": "float32", "episode_length": "float32", "num_episodes": "int32", "lengths": "int32"}
    assert {name: str(metrics[name].dtype) for name in expected} == expected

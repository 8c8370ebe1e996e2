"""rlkit.agents.alphazero: returns of alternating players, the loss in NumPy, the search, and learning a game."""

import sys
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake
from suite_stand_ins import Race

from rlkit import envs, training
from rlkit.agents import alphazero
from rlkit.envs.probe_base import ProbeState
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.networks import views
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.types import Transition

KEY = jax.random.key(0)
RUN = {
    "agent": "alphazero",
    "num_envs": 4,
    "num_steps": 4,
    "total_steps": 32,
    "num_minibatches": 2,
    "num_simulations": 4,
}


def make(env, params=(), networks=None, **settings):
    config = alphazero.Config(**{"hidden_sizes": (16,), "num_simulations": 8, "num_minibatches": 2} | settings)
    spaces = env.observation_space(params), env.action_space(params)
    return alphazero.make(config, *spaces, networks, model=env.game_model(params))


def nim():
    return envs.make("Probe-Nim")[0]


def nim_obs(stones):
    return nim()._observe(ProbeState(jnp.int32(0), jnp.float32([stones, 0])))


def returns(reward, next_value, discount, terminated=(), truncated=()):
    flags = (jnp.isin(jnp.arange(len(reward)), jnp.array(rows, jnp.int32)) for rows in (terminated, truncated))
    columns = (jnp.float32(x) for x in (reward, next_value, discount))
    return alphazero.alternating_returns(*columns, *flags).tolist()


def test_returns_by_hand():
    # Players 0, 1, 1, 0: player 1 moves twice, and player 0 wins.
    assert returns([0, 0, 0, 1], [9, 9, 9, np.nan], [-1, 1, -1, -1], terminated=[3]) == [1, -1, -1, 1]
    # The second game begins in row 2; what follows does not reach the first one.
    assert returns([0, 1, 0, 0], [9, np.nan, 9, 0.5], [-1, 1, -1, -1], terminated=[1]) == [-1, 1, 0.5, -0.5]
    # A time limit bootstraps, from the value of the player to move there; with both flags a game is over.
    assert returns([0, 2, 5], [9, 0.25, 9], [-1, -1, 1], truncated=[1, 2], terminated=[2]) == [-1.75, 1.75, 5]
    # One player, with γ = 0.5.
    assert returns([1, 1, 1], [9, 9, 4], [0.5, 0.5, 0.5]) == [2.25, 2.5, 3]


def test_returns_by_a_slow_loop():
    rng, shape = np.random.default_rng(0), (20, 3)
    reward, next_value = rng.normal(size=(2, *shape)).astype(np.float32)
    discount = rng.choice([-0.9, 0.9], shape).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    expected = np.zeros(shape)
    for n in range(3):
        following = next_value[-1, n]
        for t in reversed(range(20)):
            if truncated[t, n]:
                following = next_value[t, n]
            following = reward[t, n] + (0.0 if terminated[t, n] else discount[t, n] * following)
            expected[t, n] = following
    found = jax.jit(alphazero.alternating_returns)(reward, next_value, discount, terminated, truncated)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_targets_have_the_values_of_the_network_where_an_episode_is_cut():
    agent, shape = make(nim()), (5, 3)
    rng, state = np.random.default_rng(1), started(make(nim()), nim()).agent
    stones = rng.integers(1, 8, (2, *shape))
    obs, next_obs = (jax.vmap(jax.vmap(nim_obs))(x) for x in stones)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    assert truncated[:-1].any(1).sum() in (1, 2, 3)
    reward = jnp.float32(rng.normal(size=shape))
    rollout = Transition(obs, jnp.zeros(shape), reward, terminated, truncated, next_obs, ())
    value = alphazero.apply(agent.static, agent.actor(state), views.actor_obs(next_obs))[1]
    player, next_player = (jax.vmap(jax.vmap(agent.static.model.player))(x) for x in (obs, next_obs))
    expected = alphazero.alternating_returns(
        reward, value, jnp.where(player == next_player, 1.0, -1.0), terminated, truncated
    )
    found = jax.jit(partial(alphazero.targets, agent.static))(state, rollout)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_loss_by_hand():
    logits, value = np.float32([[1, 2, 5], [0, -1, 0]]), np.float32([0.5, -2])
    weights, target = np.float32([[0.25, 0.75, 0], [0, 0, 1]]), np.float32([1, -1])
    mask = np.array([[True, True, False], [True, True, True]])
    network = (lambda key, obs: {"shift": jnp.zeros(3)}), lambda params, obs: (obs["obs"][..., :3], obs["obs"][..., 3])
    agent = make(nim(), networks=network)
    obs = {"action_mask": jnp.array(mask), "obs": jnp.concatenate([logits, value[:, None], np.zeros((2, 4))], 1)}
    hyper = alphazero.Hyper(vf_coef=jnp.float32(3.0))
    state = alphazero.State(hyper, {}, (), (), alphazero.Normalizer((), (), ()), jnp.uint32(0))
    batch = alphazero.Batch(obs, jnp.array(weights), jnp.array(target))
    total, (_, metrics) = alphazero.loss(agent.static, {"shift": jnp.zeros(3)}, (), state, batch, KEY)
    cross_entropy = [np.log(np.exp(1) + np.exp(2)) - 1.75, np.log(2 + np.exp(-1))]
    squared = (np.tanh(value) - target) ** 2
    np.testing.assert_allclose(metrics["policy_loss"], np.mean(cross_entropy), rtol=1e-5)
    np.testing.assert_allclose(metrics["value_loss"], squared.mean(), rtol=1e-5)
    np.testing.assert_allclose(total, np.mean(cross_entropy) + 3 * squared.mean(), rtol=1e-5)


def started(agent, env, params=()):
    return jax.jit(training.make(agent, env, params, num_envs=4, num_steps=8).init)(alphazero.Hyper(), KEY)


def test_a_search_finds_the_win_of_a_player_who_moves_twice():
    """With 1 point to 3, only 1 and then 2 wins: after 2 the other wins. An untrained network knows neither."""
    env = PgxEnv("pgx:race", Race(), "none")
    agent = make(env, num_simulations=24)
    actor = agent.actor(started(agent, env).agent)
    for player in (0, 1):
        state = Race().init(KEY)
        score = jnp.full(2, 3).at[player].set(1)
        obs = env._observe(state.replace(score=score, current_player=jnp.int32(player)))
        _, action, extras = jax.jit(agent.act)(actor, (), obs, KEY)
        assert action == 1
        assert extras.action_weights[0] == 0
        assert extras.action_weights[1] > 0.9


@pytest.mark.thorough
@pytest.mark.parametrize("with_search", [True, False])
def test_a_policy_of_a_batch_is_that_of_each_and_acts_legally(with_search):
    env = nim()
    agent = make(env, evaluate_with_search=with_search)
    actor = agent.actor(started(agent, env).agent)
    batch = jax.tree.map(lambda *x: jnp.stack(x), *map(nim_obs, range(1, 8)))
    policy = jax.jit(lambda obs: agent.policy(actor, (), obs, KEY)[1])
    actions = policy(batch)
    assert actions.shape == (7,)
    np.testing.assert_array_equal(actions, jax.vmap(policy)(batch))
    assert actions[0] == 0
    assert actions[1] < 2
    del batch["game_state"]  # as an exported policy has it
    network = make(env, evaluate_with_search=False)
    np.testing.assert_array_equal(policy(batch), network.policy(actor, (), batch, KEY)[1])


class WithStatistics(nn.Module):
    """A network with batch normalization."""

    @nn.compact
    def __call__(self, obs, train=False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(8)(obs["obs"]))
        return nn.Dense(3)(x), nn.Dense(1)(x)[..., 0]


@pytest.mark.thorough
def test_statistics_of_a_network_change_in_losses_alone():
    env = nim()
    agent = make(env, networks=WithStatistics(), num_simulations=2)
    init, step = training.make(agent, env, (), num_envs=4, num_steps=4)
    state = jax.jit(init)(alphazero.Hyper(), KEY)
    after, metrics = jax.jit(step)(state)
    assert np.isfinite(metrics["loss"])
    leaves = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(s.agent.stats)]) for s in (state, after)]
    assert not np.array_equal(*leaves)
    # In training mode, an observation alone would be normalized to zeros.
    actor = agent.actor(after.agent)
    logits = [alphazero.apply(agent.static, actor, nim_obs(stones))[0] for stones in (5, 6)]
    assert not np.allclose(*logits)


@pytest.mark.thorough
def test_nim_is_learned():
    """All winning moves, by the network alone; the values of all piles."""
    env = nim()
    agent = make(env, hidden_sizes=(64,), num_minibatches=4, evaluate_with_search=False)
    init, step = training.make(agent, env, (), num_envs=32, num_steps=16)
    state = jax.jit(init)(alphazero.Hyper(), KEY)
    state = jax.jit(lambda state: jax.lax.scan(lambda s, _: (step(s)[0], None), state, None, 100)[0])(state)
    batch = jax.tree.map(lambda *x: jnp.stack(x), *map(nim_obs, range(1, 8)))
    actor = agent.actor(state.agent)
    actions = agent.policy(actor, (), batch, KEY)[1]
    np.testing.assert_array_equal(np.delete(actions, 3), [0, 1, 2, 0, 1, 2])
    value = alphazero.apply(agent.static, actor, batch)[1]
    np.testing.assert_allclose(value, [1, 1, 1, -1, 1, 1, 1], atol=0.15)


def test_mistakes(monkeypatch):
    env = nim()
    spaces = env.observation_space(()), env.action_space(())
    with mistake("opponent: none"):
        alphazero.make(alphazero.Config(), *spaces)
    monkeypatch.setitem(sys.modules, "mctx", None)
    with mistake("pip install 'rlkit-jax[mctx]'"):
        make(env)


def test_the_model_of_a_run():
    program = make_program(parse(RUN | {"env": "Probe-Nim", "wrappers": ["time_limit:9"]}))
    assert program.agent.static.model is not None
    program.close()
    with mistake("opponent: none"):
        make_program(parse(RUN | {"env": "CartPole-v1"}))
    with mistake("wrapper 'flatten'"):
        make_program(parse(RUN | {"env": "Probe-Nim", "wrappers": ["flatten"]}))


@pytest.mark.thorough
def test_a_run_is_saved_loaded_and_evaluated(tmp_path):
    import rlkit
    from rlkit.runs import loop

    config = RUN | {"env": "Probe-Nim", "num_seeds": 2, "eval_episodes": 8, "hidden_sizes": [8]}
    trained = loop.train(config, out=tmp_path / "run", show=False)
    policy = rlkit.load(trained.run)
    obs = jax.device_get(nim_obs(1))
    assert policy.act(obs, KEY)[0] == 0
    assert trained.evaluation["step"] == 32

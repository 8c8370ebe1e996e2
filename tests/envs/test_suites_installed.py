"""Environments of other libraries, where they are installed: the contract, and their own bare step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite_stand_ins import KEY, LIBRARIES, legal, play_numpy, starts

from rlkit import envs, training
from rlkit.agents import ppo

# Warnings of the libraries cannot be fixed here.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::UserWarning")]


def of_brax(env, params, key, state, action):
    return env.env.step(jax.tree.map(lambda x: x, state.env_state), action).obs


def of_craftax(env, params, key, state, action):
    return env.env.step_env(key, state, action, params)[0]


def of_xland(env, params, key, state, action):
    obs = env.env.step(params, state, action).observation
    return jnp.concatenate([obs[..., :1] == jnp.arange(13), obs[..., 1:] == jnp.arange(12)], axis=-1)


def of_maze(env, params, key, state, action):
    obs = env.env.step(state, action)[1].observation
    positions = {name: getattr(obs, name)._asdict() for name in ("agent_position", "target_position")}
    return {"walls": obs.walls, "step_count": obs.step_count, "action_mask": obs.action_mask} | positions


def of_pgx(env, params, key, state, action):
    next_state = env.env.step(state, action, jax.random.split(key)[0])
    return {"action_mask": next_state.legal_action_mask, "obs": next_state.observation}


# By task: the arguments for episodes of three steps, and the step of the library itself.
REAL = {
    "brax:inverted_pendulum": ({"max_steps_in_episode": 3, "backend": "spring"}, of_brax),
    "brax:ant": ({"max_steps_in_episode": 3, "backend": "spring"}, of_brax),
    "playground:CartpoleBalance": ({"max_steps_in_episode": 3}, of_brax),
    "craftax:Craftax-Classic-Symbolic-v1": ({"max_timesteps": 3}, of_craftax),
    "xland:MiniGrid-EmptyRandom-6x6": ({"max_steps": 3}, of_xland),
    "jumanji:Maze-v0": ({"time_limit": 3}, of_maze),
    "pgx:2048": ({}, of_pgx),
}


@pytest.fixture(scope="module", params=REAL)
def real(request):
    """Make a task: env, params, and the library's own step; skipped where the library is not installed."""
    suite = request.param.partition(":")[0]
    pytest.importorskip(LIBRARIES[suite], reason=f"pip install 'rlkit-jax[{suite}]' runs this")
    kwargs, own = REAL[request.param]
    env, params = envs.make(request.param, **kwargs)
    return (env, params, own) if kwargs else (envs.wrap(env, ["time_limit:3"]), params, own)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_five_episodes_start_from_five_states(real):
    env, params, _ = real
    envs.check(env, params, jax.random.key(1))
    first, (obs, *_, terminated, truncated, _) = play_numpy(env, params, 15)
    done = terminated | truncated
    assert done.sum() >= 4
    assert truncated.any() or env.name == "jumanji:Maze-v0"  # its time limit terminates, by its discount
    first_obs = starts(first, obs, done)
    assert len(np.unique(first_obs[:5], axis=0)) == 5


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_final_observation_is_that_of_the_library(real):
    env, params, own = real
    inner = env.env if hasattr(env, "n") else env

    @jax.jit
    def compare(key):
        """Return [T], true where both agree, and [T], true where the episode ended."""

        def step(state, key):
            action_key, step_key = jax.random.split(key)
            action = env.action_space(params).sample(action_key)
            _, next_state, _, terminated, truncated, info = env.step(step_key, state, action, params)
            library_key, library_state = step_key, state
            if inner is not env:  # under the wrapper time_limit
                library_key, library_state = jax.random.split(step_key)[0], state.env_state
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                expected = own(inner, params, jax.random.split(library_key)[0], library_state, action)
            agree = lambda a, b: jnp.allclose(a.astype(float), b.astype(float), 1e-5, 1e-5)  # noqa: E731
            same = jax.tree.leaves(jax.tree.map(agree, info["final_observation"], expected))
            return next_state, (jnp.all(jnp.stack(same)), terminated | truncated)

        _, state = env.reset(key, params)
        return jax.lax.scan(step, state, jax.random.split(key, 8))[1]

    same, done = compare(KEY)
    assert same.all()
    assert done.any()


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_two_updates_of_ppo(real):
    env, params, _ = real
    config = ppo.Config(hidden_sizes=(8,), num_epochs=1, num_minibatches=2)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=4, num_steps=8)
    step = jax.jit(step)
    state, _ = step(jax.jit(init)(ppo.Hyper(), KEY))
    state, metrics = step(state)
    assert step._cache_size() == 1
    assert metrics["num_episodes"] >= 8
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.agent.params, metrics["loss"])))


@pytest.mark.thorough
def test_tic_tac_toe_is_played_to_its_end():
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    env, params = envs.make("pgx:tic_tac_toe")
    envs.check(env, params, jax.random.key(1))
    _, (obs, state, action, reward, terminated, _, final) = play_numpy(env, params, 300, legal)
    assert np.all(state.current_player == 0)
    own, other = final["obs"][..., 0].sum((1, 2)), final["obs"][..., 1].sum((1, 2))
    assert np.all(np.abs(own - other) <= 1), "player 0's own stones come first, at the end as well"
    assert np.all(final["obs"][np.arange(300), action // 3, action % 3, 0]), "the stone of the action"
    assert set(reward[terminated]) == {-1, 0, 1}
    assert not reward[~terminated].any()
    assert set(obs["obs"][terminated].sum((1, 2, 3))) == {0, 1}, "both players begin some games"
    wins = (reward == 1).sum() / terminated.sum()
    assert 0.25 < wins < 0.6


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.timeout(3600)
def test_ant_learns_to_run():
    """Measured: a return of -205 in the first 40,000 steps, 240 after half a million; some minutes on one core."""
    pytest.importorskip("brax", reason="pip install 'rlkit-jax[brax]' runs this")
    env, params = envs.make("brax:ant", backend="spring")
    config = ppo.Config(activation="silu", num_minibatches=8, normalize_obs=True, normalize_reward=True)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    init, step = training.make(agent, env, params, num_envs=64, num_steps=32)
    state = jax.jit(init)(ppo.Hyper(learning_rate=1e-3, gamma=0.97, ent_coef=0.01), KEY)
    metrics = jax.jit(lambda state: jax.lax.scan(lambda s, _: step(s), state, None, 240)[1])(state)
    returns = np.asarray(metrics["returns"]).reshape(12, -1)  # of each 40,000 steps
    means = np.nanmean(returns, axis=1)
    assert means[0] < 0
    assert means[-1] > 100

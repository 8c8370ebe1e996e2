"""Tasks of gymnax through rlkit.envs: types, time limits, spaces, errors, and imports."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from mistakes import mistake
from suite_stand_ins import play as play_one

from rlkit import envs, spaces
from rlkit.envs.adapter import Adapter
from rlkit.spaces import Box, Discrete, shape_of, zeros
from rlkit.types import Env, num_players


def avals(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


def play(env: Env, params, num_envs: int, num_steps: int):
    """Play at random: -> first obs [N, ...]; obs, final, reward, terminated, truncated [T, N, ...]."""
    streams = jax.jit(jax.vmap(lambda key: play_one(env, params, key, num_steps), out_axes=(0, 1)))
    first, (obs, _, _, *flags, final) = streams(jax.random.split(jax.random.key(0), num_envs))
    return jax.device_get((first, obs, final, *flags))


@pytest.mark.parametrize("name", envs.names())
def test_types_are_those_of_the_space_and_stay_the_same(name):
    env, params = envs.make(name)
    players = () if num_players(env) == 1 else (num_players(env),)
    space, action = env.observation_space(params), env.action_space(params).sample(jax.random.key(0))
    action = jax.tree.map(lambda x: jnp.broadcast_to(x, (*players, *x.shape)), action)
    obs, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    next_obs, next_state, reward, terminated, truncated, info = jax.eval_shape(
        env.step, jax.random.key(1), state, action, params
    )
    expected = jax.tree.map(lambda like: ((*players, *like.shape), like.dtype, False), shape_of(space))
    assert avals(obs) == avals(next_obs) == avals(info["final_observation"]) == expected
    assert avals(state) == avals(next_state)
    assert not any(x.weak_type for x in jax.tree.leaves(state))
    assert avals(reward) == (players, jnp.float32, False)
    assert avals(terminated) == avals(truncated) == (players, jnp.bool_, False)
    goals = {"is_success"} if name in ("Probe-BitFlip", "Probe-PointGoal") else set()
    assert set(info) == {"final_observation"} | goals
    assert env.name == name


def test_shape_of_agrees_with_samples():
    parts = {
        "b": Box(-np.inf, np.inf, (2, 3)),
        "a": spaces.Tuple((Box(0.0, 1.0, (1,)), Box(0, 255, (4, 4), np.uint8))),
        "c": spaces.Tuple((Discrete(3), spaces.MultiDiscrete((2, 5)))),
    }
    for space in (spaces.Dict(parts), Discrete(2)):
        like = jax.eval_shape(space.sample, jax.random.key(0))
        assert avals(shape_of(space)) == avals(zeros(space)) == avals(like)
        assert not any(np.any(x) for x in jax.tree.leaves(zeros(space)))
    assert shape_of(Box(0.0, 1.0, (1,), np.float64)).dtype == np.float32  # as JAX has it


def test_observations_are_of_the_space_of_their_own_parameters():
    class Params(struct.PyTreeNode):
        whole: bool  # a leaf, so that the structure is the same

    class Task(Adapter):
        name = "task"

        def _start(self, key, params):
            return jnp.zeros((2,)), jnp.zeros(())

        def observation_space(self, params):
            return Box(-1, 1, (2,), np.int32 if params.whole else np.float32)

    task = Task()
    for whole in (True, False, True):
        assert task.reset(jax.random.key(0), Params(whole))[0].dtype == (np.int32 if whole else np.float32)


# The tasks whose bounds gymnax gets wrong, and those whose dtype it gets wrong.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["MemoryChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc", "FourRooms-misc"])
def test_random_play_stays_within_the_bounds(name):
    env, params = envs.make(name)
    first, obs, final, *_ = play(env, params, num_envs=16, num_steps=250)
    space = env.observation_space(params)
    assert isinstance(space, Box)
    for value in (first, obs, final):
        assert value.dtype == space.dtype
        assert np.all(value >= space.low - 1e-6)
        assert np.all(value <= space.high + 1e-6)


def test_a_time_limit_keeps_the_true_final_observation():
    """Compare `step` with gymnax's own functions, before and after the reset."""
    env, params = envs.make("CartPole-v1", max_steps_in_episode=5)
    raw = env.env
    step, step_env, reset = jax.jit(env.step), jax.jit(raw.step_env), jax.jit(raw.reset_env)
    ends, (obs, state) = [], jax.jit(env.reset)(jax.random.key(0), params)
    for t in range(23):
        key = jax.random.key(t)
        step_key, reset_key = jax.random.split(key)
        with jax.numpy_dtype_promotion("standard"):
            final, after, *_ = step_env(step_key, state, t % 2, params)
            fresh, _ = reset(reset_key, params)
        obs, state, reward, terminated, truncated, info = step(key, state, jnp.int32(t % 2), params)
        np.testing.assert_array_equal(info["final_observation"], final)
        np.testing.assert_array_equal(obs, fresh if truncated else final)
        assert state.time == (0 if truncated else after.time)
        assert not terminated
        assert reward == 1
        ends.append(bool(truncated))
    assert ends == [t % 5 == 4 for t in range(23)]
    assert step._cache_size() == 1  # the state of a reset and the state of a step are the same program's input


def test_terminated_and_truncated_can_both_be_true():
    env, params = envs.make("DeepSea-bsuite")
    _, _, _, _, terminated, truncated = play(env, params, num_envs=2, num_steps=20)
    assert np.any(terminated & truncated)


@pytest.mark.parametrize("name", ["CartPole-v1", pytest.param("Breakout-MinAtar", marks=pytest.mark.slow)])
def test_same_keys_same_episodes_as_gymnax(name):
    env, params = envs.make(name)
    action = env.action_space(params).sample(jax.random.key(3))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = jax.jit(lambda k: env.env.step(k, env.env.reset(k, params)[1], action, params))(jax.random.key(1))
    got = jax.jit(lambda k: env.step(k, env.reset(k, params)[1], action, params))(jax.random.key(1))
    for e, g in zip(jax.tree.leaves(expected[:5]), jax.tree.leaves(got[:5]), strict=True):
        np.testing.assert_allclose(e, g, rtol=1e-6)


def test_every_reset_of_every_environment_draws_its_own_numbers():
    """Environments that reset in the same step start in different states."""
    env, params = envs.make("CartPole-v1", max_steps_in_episode=3)
    first, obs, _, _, _, truncated = play(env, params, num_envs=8, num_steps=30)
    starts = np.concatenate([first, obs[truncated]])
    assert len(starts) == 8 + 80
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_no_key_is_used_twice():
    env, params = envs.make("FrozenLake-misc")  # draws in each step
    with jax.debug_key_reuse(True):
        _, state = jax.jit(env.reset)(jax.random.key(0), params)
        jax.jit(env.step)(jax.random.key(1), state, jnp.int32(0), params)


def test_traced_parameters():
    """Bounds that depend on traced parameters are unknown, not those of the default parameters."""
    env, params = envs.make("Pendulum-v1")
    spaces = []

    @jax.jit
    def reset(max_torque):
        traced = params.replace(max_torque=max_torque, max_speed=max_torque)
        spaces.extend([env.observation_space(traced), env.action_space(traced)])
        return env.reset(jax.random.key(0), traced)[0]

    assert reset(1.0).shape == (3,)
    assert spaces == [Box(-np.inf, np.inf, (3,)), Box(-np.inf, np.inf, (1,))]


def test_parameters_by_keyword():
    env, params = envs.make("CartPole-v1", max_steps_in_episode=7, gravity=10)
    assert params.max_steps_in_episode == 7
    assert isinstance(params.gravity, float)
    env, params = envs.make("FrozenLake-misc", map_name="8x8")
    assert env.observation_space(params) == Discrete(64)
    _, params = envs.make("Acrobot-v1", available_torque=[-2.0, 0.0, 2.0])
    np.testing.assert_array_equal(params.available_torque, [-2, 0, 2])


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("Cartpole-v1", {}, "env='Cartpole-v1' is not known; did you mean 'CartPole-v1'"),
        ("breakout", {}, "did you mean 'Breakout-MinAtar'"),
        ("Probe-Memroy", {}, "did you mean 'Probe-Memory'"),
        ("MNISTBandit-bsuite", {}, "cannot run: it downloads its data"),
        (
            "CartPole-v1",
            {"max_steps": 5},
            "max_steps=5 is not a parameter of env 'CartPole-v1'; did you mean 'max_steps_",
        ),
        (
            "CartPole-v1",
            {"max_steps_in_episode": 5.5},
            "CartPole-v1.max_steps_in_episode=5.5 must be an integer; its default is 500",
        ),
        ("CartPole-v1", {"gravity": "low"}, "CartPole-v1.gravity='low' must be a number; its default is 9.8"),
        ("Acrobot-v1", {"available_torque": [1.0]}, "must be a number in each of [3] entries"),
        ("FrozenLake-misc", {"map_name": "9x9"}, "map_name must be '4x4' or '8x8'"),
        ("Probe-Memory", {"size": 3}, "size=3 is not a parameter of env 'Probe-Memory'; it has length"),
        ("Probe-Memory", {"length": 1}, "at least 2"),
    ],
)
def test_mistakes_are_named(name, kwargs, message):
    with mistake(message):
        envs.make(name, **kwargs)


@pytest.mark.slow
def test_importing_gymnax_does_not_break_the_plotting_libraries():
    """In fresh processes, in two orders: nothing heavy is imported, no stand-in remains, and plotting works after."""
    start = """
        import sys, warnings
        warnings.simplefilter("error")
        import rlkit.envs
        assert not {"gymnax", "matplotlib", "pandas"} & set(sys.modules)
        env, params = rlkit.envs.make("CartPole-v1")
        assert not {"matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn", "pandas"} & set(sys.modules)
        warnings.resetwarnings()
        import gymnax, jax
        catch, catch_params = gymnax.make("Catch-bsuite")
        _, catch_state = catch.reset(jax.random.key(0), catch_params)
        from gymnax.environments.misc import pong
    """
    visualize_first = """
        import gymnax.visualize
        assert gymnax.visualize.Visualizer
        catch.render(catch_state, catch_params)
        import matplotlib.colors, matplotlib.pyplot as plt
        plt.plot([1, 2])
        assert pong.colors.ListedColormap is matplotlib.colors.ListedColormap
    """
    plotting_first = """
        import matplotlib.pyplot as plt
        from matplotlib import colors
        plt.subplots()
        catch.render(catch_state, catch_params)
        assert pong.colors.BoundaryNorm is colors.BoundaryNorm
        import seaborn
        assert pong.sns.color_palette is seaborn.color_palette
        import gymnax.visualize
        assert gymnax.visualize.Visualizer
    """
    end = """
        for name in ("matplotlib", "matplotlib.pyplot", "matplotlib.colors", "seaborn"):
            assert sys.modules[name].__spec__ is not None and sys.modules[name].__file__, name
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(start + order + end)],
            env={"MPLBACKEND": "Agg", "PATH": "", "HOME": "/nonexistent", "MPLCONFIGDIR": "/tmp"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in (visualize_first, plotting_first)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors


def test_a_stand_in_becomes_the_real_module_when_read(monkeypatch):
    """Inside the context as well, where another thread may use one."""
    from rlkit.envs import _lazy_plotting

    for name in [name for name in sys.modules if name.split(".")[0] in _lazy_plotting._PACKAGES]:
        monkeypatch.delitem(sys.modules, name)
    with _lazy_plotting.plotting_imported_lazily():
        import matplotlib.colors as early

        assert isinstance(early, _lazy_plotting._LazyModule)
        assert early.to_hex((1, 0, 0)) == "#ff0000"
        assert not any(isinstance(module, _lazy_plotting._LazyModule) for module in sys.modules.values())
    assert early.to_hex((0, 0, 1)) == "#0000ff"


def test_importing_twice_is_harmless():
    from rlkit.envs import _lazy_plotting

    before = dict(sys.modules)
    with pytest.raises(RuntimeError), _lazy_plotting.plotting_imported_lazily():
        raise RuntimeError
    assert {name for name in sys.modules if name not in before} == set()

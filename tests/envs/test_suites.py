"""Adapters for environments of other libraries, on tiny stand-ins and on the libraries that are installed."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite_stand_ins import (
    KEY,
    LIBRARIES,
    TINY,
    Dig,
    Race,
    Slide,
    Walk,
    WalkParams,
    five_values,
    key_data,
    legal,
    physics,
    play,
    play_numpy,
    starts,
)

from rlkit import cli, envs
from rlkit.envs import registry
from rlkit.envs.suites import craftax
from rlkit.envs.suites.jumanji import JumanjiEnv
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError

# Warnings of the libraries cannot be fixed here.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.mark.parametrize("suite", TINY)
def test_the_contract_is_kept(suite):
    env, params = TINY[suite][0]()
    envs.check(env, params, KEY)
    with jax.debug_key_reuse(True):
        jax.jit(lambda key: env.reset(key, params))(jax.random.key(1))


@pytest.mark.thorough
@pytest.mark.parametrize("suite", ["brax", "pgx"])
def test_vmapped_environments_equal_single_ones(suite):
    make, act = TINY[suite]
    env, params = make()
    keys = jax.random.split(KEY, 3)
    run = lambda key: play(env, params, key, 20, act)  # noqa: E731
    batched, single = jax.device_get(key_data((jax.jit(jax.vmap(run))(keys), jax.jit(run)(keys[1]))))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b), batched, single)


def test_five_values_distinguish_time_limit_and_termination():
    env, params = five_values()
    _, (obs, state, action, reward, terminated, truncated, final) = play_numpy(env, params, 200)
    x, time = state["x"] + action.astype(np.float32), state["time"] + 1
    np.testing.assert_array_equal(final[:, 0], x)
    np.testing.assert_array_equal(terminated, x >= 3)
    np.testing.assert_array_equal(truncated, (time >= 6) & (x < 3))
    assert np.any((time >= 6) & terminated), "no episode terminated at the time limit"
    assert reward.dtype == jnp.float32
    done = terminated | truncated
    np.testing.assert_array_equal(obs[~done], final[~done])
    assert np.all((obs[done][:, 0] >= 0) & (obs[done][:, 0] < 1))
    assert len(np.unique(obs[done][:, 0])) == done.sum() > 20


@pytest.mark.thorough
def test_five_values_give_the_same_episodes_as_six():
    """CartPole of gymnax before 1.0, where `done` includes the time limit."""
    new, params = envs.make("CartPole-v1", max_steps_in_episode=20)

    class Old:
        default_params = params

        def __getattr__(self, name):
            if name == "is_truncated":  # new in gymnax 1
                raise AttributeError(name)
            return getattr(new.env, name)

        def is_terminal(self, state, params):
            return new.env.is_terminal(state, params) | (state.time >= params.max_steps_in_episode)

        def step_env(self, key, state, action, params):
            obs, state, reward, _, info = new.env.step_env(key, state, action, params)
            return obs, state, reward, self.is_terminal(state, params), info

    old, _ = envs.adapt(Old())
    a, b = (play_numpy(env, params, 200) for env in (old, new))
    jax.tree.map(np.testing.assert_array_equal, (a[0], a[1][:5], a[1][6]), (b[0], b[1][:5], b[1][6]))
    terminated, truncated = b[1][4:6]
    np.testing.assert_array_equal(a[1][5], truncated & ~terminated)  # before 1.0 an end was either of the two
    assert terminated.any()
    assert (truncated & ~terminated).any()


class ResetsItself(Walk):
    step_env = None

    def step(self, key, state, action, params): ...


class NoIsTerminal(Walk):
    is_terminal = None


class NoTimeLimit(Walk):
    default_params = ()

    def step_env(self, key, state, action, params):
        return *super().step_env(key, state, action, WalkParams())[:3], jnp.array(True), {}


def test_ambiguous_environments_of_five_values_are_refused():
    with pytest.raises(
        ConfigError, match=r"env='ResetsItself' has no step_env\(\); a step that resets by itself loses"
    ):
        envs.adapt(ResetsItself())
    with pytest.raises(ConfigError, match="has max_steps_in_episode but no is_terminal"):
        envs.adapt(NoIsTerminal())
    env, params = envs.adapt(NoTimeLimit())  # done is termination
    *_, terminated, truncated, _ = play_numpy(env, params, 3)[1]
    assert terminated.all()
    assert not truncated.any()


def test_brax_starts_every_episode_at_random():
    """Episodes start from new states, unlike with Brax's own wrapper; time limit and termination are separate."""
    env, params = physics()
    act = lambda obs, key: jax.random.uniform(key, (1,))  # noqa: E731
    first, (obs, state, action, _, terminated, truncated, final) = play_numpy(env, params, 100, act)
    x = state.env_state.pipeline_state + action[:, 0]
    np.testing.assert_array_equal(final, np.stack([x, np.ones_like(x)], 1))
    np.testing.assert_array_equal(terminated, x > 2)
    np.testing.assert_array_equal(truncated, state.elapsed == 3)
    done = terminated | truncated
    assert np.any(terminated & ~truncated)
    assert np.any(truncated & ~terminated)
    first_obs = starts(first, obs, done)
    assert len(np.unique(first_obs[:, 0])) == len(first_obs) > 20
    assert np.all(first_obs[:, 1] == 0)


def test_a_step_does_not_modify_its_arguments():
    env, params = physics()
    _, state = env.reset(KEY, params)
    env.step(KEY, state, jnp.ones(1), params)
    assert state.env_state.info["n"] == 0
    assert state.env_state.metrics["x"] == 0


@pytest.mark.thorough
def test_player_0_against_random_opponents():
    env, params = PgxEnv("pgx:race", Race()), ()
    _, (obs, state, action, reward, terminated, truncated, final) = play_numpy(env, params, 400, legal)
    assert np.all(state.current_player == 0), "a step began when it was not player 0's turn"
    assert not truncated.any()
    own, other = final["obs"][:, 0], final["obs"][:, 1]
    np.testing.assert_array_equal(own, state.score[:, 0] + action)  # the view of player 0, at the end as well
    np.testing.assert_array_equal(reward, np.where(own >= 4, 1, np.where(other >= 4, -1, 0)))
    np.testing.assert_array_equal(terminated, (own >= 4) | (other >= 4))
    np.testing.assert_array_equal(other[(action == 1) & ~terminated], state.score[:, 1][(action == 1) & ~terminated])
    first_obs = obs["obs"][terminated]
    assert np.all(first_obs[:, 0] == 0)
    assert set(first_obs[:, 1]) > {0, 2}, "the opponent begins some games"
    assert 4 not in first_obs[:, 1], "a game that ended before player 0's turn"
    assert (reward == -1).sum() > 20
    assert (reward == 1).sum() > 20


def test_a_mask_of_combinations_gives_a_discrete_action():
    env = JumanjiEnv("jumanji:dig", Dig())
    assert env.action_space(()) == Discrete(6)
    space = env.observation_space(())
    assert isinstance(space, Dict)
    assert space.spaces["action_mask"].shape == (6,)
    assert space.spaces["step_count"] == Box(0, 3, (), np.int32)
    _, (_, state, action, reward, terminated, truncated, final) = play_numpy(env, (), 100, legal)
    assert not np.any(action == 0), "an illegal action was drawn"
    np.testing.assert_array_equal(final["cell"]["row"], action // 3)
    np.testing.assert_array_equal(final["cell"]["column"], action % 3)
    np.testing.assert_array_equal(terminated, action == state["treasure"])
    np.testing.assert_array_equal(truncated, ~terminated & (state["time"] == 2))
    np.testing.assert_array_equal(reward, 2.0 * terminated)  # both agents' rewards
    assert terminated.any()
    assert truncated.any()


def test_a_mask_per_choice_keeps_the_vector_of_actions():
    env = JumanjiEnv("jumanji:dig", Dig(joint_mask=False))
    assert env.action_space(()) == MultiDiscrete((4, 4))
    obs, _ = env.reset(KEY, ())
    np.testing.assert_array_equal(obs["action_mask"], [False, *[True] * 7])


# Names and errors.


@pytest.fixture
def tiny_brax(monkeypatch):
    brax, brax_envs = types.ModuleType("brax"), types.ModuleType("brax.envs")
    brax_envs._envs = {"slide": Slide, "fast": Slide, "swimmer": Slide}
    monkeypatch.setitem(sys.modules, "brax", brax)
    monkeypatch.setitem(sys.modules, "brax.envs", brax_envs)


def test_a_suite_by_name(tiny_brax):
    assert envs.names("brax") == ["brax:slide"]
    env, params = envs.make("brax:slide", max_steps_in_episode=3, speed=2.0)
    assert env.env.speed == 2.0
    *_, truncated, _ = play_numpy(env, params, 12, lambda obs, key: jnp.zeros(1))[1]
    assert truncated.tolist() == [t % 3 == 2 for t in range(12)]


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("brax:slied", {}, "env='brax:slied' is not known; did you mean 'brax:slide'"),
        ("brax:swimmer", {}, "env='brax:swimmer' cannot run: Brax computes water"),
        ("brxa:slide", {}, "env='brxa:slide' does not start with the name of a suite; did you mean 'brax:'"),
        ("nothing:slide", {}, "try brax:, craftax:, jaxmarl:"),
        ("brax:slide", {"sped": 2}, "sped=2 is not a parameter of env 'brax:slide'; did you mean 'speed'"),
        ("brax:slide", {"max_steps_in_episode": 0}, "brax:slide.max_steps_in_episode=0 must be an integer"),
        ("craftax:Craftax-Symbolik-v1", {}, "did you mean 'craftax:Craftax-Symbolic-v1'"),
    ],
)
def test_mistakes_are_named(tiny_brax, name, kwargs, message):
    with pytest.raises(ConfigError) as error:
        envs.make(name, **kwargs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("suite", LIBRARIES)
def test_the_error_for_a_missing_library_has_the_install_command(monkeypatch, suite):
    assert set(LIBRARIES) == set(registry.SUITES)
    for module in [name for name in sys.modules if name.partition(".")[0] == LIBRARIES[suite]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, LIBRARIES[suite], None)
    with pytest.raises(ConfigError) as error:
        envs.make(f"{suite}:{'Craftax-Symbolic-v1' if suite == 'craftax' else 'x'}")
    line = f"env={suite}:... needs {LIBRARIES[suite]}, which is not installed; pip install 'rlkit-jax[{suite}]'"
    assert str(error.value) == line


def test_an_incomplete_cache_of_craftax_is_named(monkeypatch):
    def load(task, auto_reset):
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")

    monkeypatch.setattr(craftax, "library", lambda *names: types.SimpleNamespace(make_craftax_env_from_name=load))
    with pytest.raises(ConfigError, match=r"cache of textures is incomplete.*delete texture_cache\*\.pbz2"):
        envs.make("craftax:Craftax-Classic-Pixels-v1")


def test_the_command_line_prints_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.setenv("RLKIT_CACHE", "off")
    assert cli.main(["check", "ppo/brax_ant"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'rlkit-jax[brax]'")

"""Adapters for environments of other libraries, on tiny stand-ins and on the libraries that are installed."""

import sys
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rlkit import cli, envs, training
from rlkit.agents import ppo
from rlkit.envs import registry
from rlkit.envs.suites.brax import PhysicsEnv
from rlkit.envs.suites.jumanji import JumanjiEnv
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete
from rlkit.types import ConfigError

# Warnings of the libraries cannot be fixed here.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::UserWarning")]
KEY = jax.random.key(0)


def play(env, params, key, num_steps, act=None):
    """Play one stream at random: -> first obs; obs, state, action, reward, flags and final observations [T, ...]."""

    def step(carry, key):
        obs, state = carry
        act_key, step_key = jax.random.split(key)
        action = env.action_space(params).sample(act_key) if act is None else act(obs, act_key)
        obs, next_state, reward, terminated, truncated, info = env.step(step_key, state, action, params)
        out = (obs, state, action, reward, terminated, truncated, info["final_observation"])
        return (obs, next_state), out

    reset_key, play_key = jax.random.split(key)
    first = env.reset(reset_key, params)
    return first[0], jax.lax.scan(step, first, jax.random.split(play_key, num_steps))[1]


def play_numpy(env, params, num_steps, act=None):
    """Play as `play` does, compiled, with NumPy arrays as results."""
    return jax.device_get(key_data(jax.jit(lambda key: play(env, params, key, num_steps, act))(KEY)))


def key_data(tree):
    """Replace the keys in a tree by their data."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def legal(obs, key):
    """Draw a random legal action."""
    return jax.random.categorical(key, jnp.where(obs["action_mask"], 0.0, -jnp.inf)).astype(jnp.int32)


def starts(first, obs, done):
    """Return the first observations of episodes, as rows."""
    leaves = zip(jax.tree.leaves(first), jax.tree.leaves(obs), strict=True)
    rows = [np.concatenate([np.ravel(a)[None], np.reshape(b[done], (done.sum(), -1))]) for a, b in leaves]
    return np.concatenate([row.astype(np.float64) for row in rows], axis=1)


# Stand-ins, each with the interface of its library.


class WalkParams(struct.PyTreeNode):
    max_steps_in_episode: int = 6


class Walk:
    """A walk that starts at random and terminates at 3; its step returns five values, as in gymnax before 1.0."""

    default_params = WalkParams()

    def reset_env(self, key, params):
        state = {"x": jax.random.uniform(key), "time": 0}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        state = {"x": state["x"] + action, "time": state["time"] + 1}
        return self.observe(state), state, 1, self.is_terminal(state, params), {"discount": 0.0}

    def observe(self, state):
        return jnp.stack([state["x"], 0.5])

    def is_terminal(self, state, params):
        return (state["x"] >= 3) | (state["time"] >= params.max_steps_in_episode)

    def observation_space(self, params):
        return Box(0, 10, (2,))

    def action_space(self, params):
        return Discrete(2)


class PhysicsState(struct.PyTreeNode):
    pipeline_state: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Slide:
    """A body of Brax that starts at random and terminates at 2; the step modifies the dictionaries of its state."""

    action_size = 1

    def __init__(self, speed=1.0):
        self.speed = speed

    def reset(self, rng):
        rng, start = jax.random.split(rng)
        x = jax.random.uniform(start)
        return PhysicsState(x, jnp.stack([x, 0.0]), jnp.zeros(()), jnp.zeros(()), {"x": 0.0}, {"rng": rng, "n": 0})

    def step(self, state, action):
        x = state.pipeline_state + self.speed * action[0]
        state.metrics.update(x=x)
        state.info["n"] += 1
        done = jnp.where(x > 2, 1.0, 0.0)
        return state.replace(pipeline_state=x, obs=jnp.stack([x, 1.0]), reward=1.0 * (x > 1), done=done)


class RaceState(struct.PyTreeNode):
    current_player: jax.Array
    observation: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    legal_action_mask: jax.Array
    score: jax.Array  # [2]
    moves: jax.Array


class Race:
    """A game of pgx: two players add 1 or 2 to their scores, and the first at 4 wins; action 0 is never legal.

    A player who has added 1 moves again. Observations begin with the player's own score.
    """

    num_players = 2

    def init(self, key):
        player = jax.random.bernoulli(key).astype(jnp.int32)
        false, mask = jnp.array(False), jnp.array([False, True, True])
        state = RaceState(player, jnp.zeros(2), jnp.zeros(2), false, false, mask, jnp.zeros(2, jnp.int32), jnp.int32(0))
        return state.replace(observation=self._observe(state, player))

    def step(self, state, action, key=None):
        del key
        player = state.current_player
        score = state.score.at[player].add(action)
        over = score[player] >= 4
        rewards = jnp.where(over, jnp.float32([-1, -1]).at[player].set(1), 0.0)
        state = state.replace(
            current_player=jnp.where(action == 1, player, 1 - player), rewards=rewards, terminated=over, score=score,
            moves=state.moves + 1,
        )  # fmt: skip
        return state.replace(observation=self._observe(state, state.current_player))

    def _observe(self, state, player_id):
        return jnp.stack([state.score[player_id], state.score[1 - player_id]]).astype(jnp.float32)


class DiscreteArray:
    shape, dtype = (), np.dtype(np.int32)

    def __init__(self, num_values):
        self.num_values = num_values


class BoundedArray:
    def __init__(self, shape, dtype, minimum, maximum):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.minimum, self.maximum = np.full(shape, minimum, dtype), np.full(shape, maximum, dtype)


class Spec:
    def __init__(self, **specs):
        self._specs = specs
        self.__dict__.update(specs)


class Cell(NamedTuple):
    row: jax.Array
    column: jax.Array


class Digging(NamedTuple):
    cell: Cell
    action_mask: jax.Array
    step_count: jax.Array


class TimeStep(NamedTuple):
    reward: jax.Array
    discount: jax.Array
    observation: Digging
    ends: jax.Array

    def last(self):
        return self.ends


class Dig:
    """A task of Jumanji: dig cells of a 2 x 3 field; the treasure terminates, the third step truncates."""

    def __init__(self, joint_mask=True):
        self.mask = (2, 3) if joint_mask else (2, 4)
        size = np.array([1, 2]) if joint_mask else np.array([4, 4])  # too wide by one, as in MultiCVRP
        self.action_spec = BoundedArray((2,), np.int16, 0, size)
        number = BoundedArray((), np.int32, 0, 2)
        self.observation_spec = Spec(
            cell=Spec(row=number, column=number),
            action_mask=BoundedArray(self.mask, bool, False, True),
            step_count=DiscreteArray(3),
        )

    def reset(self, key):
        key, hide = jax.random.split(key)
        state = {"treasure": jax.random.randint(hide, (), 0, 6), "time": jnp.int32(0), "key": key}
        return state, TimeStep(0.0, 1.0, self.observe(state, jnp.zeros(2, jnp.int16)), jnp.array(False))

    def step(self, state, action):
        assert action.shape == (2,)
        assert action.dtype == jnp.int16
        state = state | {"time": state["time"] + 1}
        success = action[0] * 3 + action[1] == state["treasure"]
        discount = jnp.where(success, 0.0, 1.0)
        return state, TimeStep(
            jnp.stack([success, success]), discount, self.observe(state, action), success | (state["time"] >= 3)
        )

    def observe(self, state, action):
        mask = jnp.ones(self.mask, bool).at[0, 0].set(False)
        return Digging(Cell(*action.astype(jnp.int32)), mask, state["time"])


def five_values():
    return envs.adapt(Walk(), name="Walk")


def physics():
    from rlkit.envs.adapter import TimeLimitParams

    return PhysicsEnv("brax:slide", Slide()), TimeLimitParams(4)


TINY = {
    "five values": (five_values, None),
    "brax": (physics, None),
    "pgx": (lambda: (PgxEnv("pgx:race", Race()), ()), legal),
    "jumanji": (lambda: (JumanjiEnv("jumanji:dig", Dig()), ()), legal),
}


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
        ("nothing:slide", {}, "try brax:, craftax:, jumanji:, pgx:, playground:, xland:"),
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


LIBRARIES = {
    "brax": "brax",
    "craftax": "craftax",
    "jumanji": "jumanji",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "xland": "xminigrid",
}


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


def test_the_command_line_prints_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.setenv("RLKIT_CACHE", "off")
    assert cli.main(["check", "ppo/brax_ant"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'rlkit-jax[brax]'")


# The libraries themselves, where they are installed.


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
    config = ppo.Config(hidden_sizes=(8,), channels=(4,), num_epochs=1, num_minibatches=2)
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

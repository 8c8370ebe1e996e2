"""JaxMARL's interface in rlkit's: players, masks, ends, padding and the state of the world, against a stand-in."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from mistakes import mistake
from suite_stand_ins import KEY, legal, play_numpy

from rlkit import envs
from rlkit.envs.suites import jaxmarl
from rlkit.envs.suites.jaxmarl import JaxMarlEnv
from rlkit.spaces import Discrete as OwnDiscrete
from rlkit.types import ConfigError


class Discrete:
    def __init__(self, n):
        self.n = n


class HuntState(struct.PyTreeNode):
    step: jax.Array
    done: jax.Array
    health: jax.Array  # [2], of the agents
    prey: jax.Array
    unit_alive: jax.Array | None = None  # in battles


class Hunt:
    """Two agents with 2 and 3 actions; action 1 hurts the prey, of health 4, and action 2 the other agent, of health 2.

    It ends when the prey or all agents are down, or after 6 steps. Observations have 1 and 2 numbers.
    """

    agents = ("wolf", "dog")

    def reset(self, key):
        health = jax.random.randint(key, (2,), 1, 3)
        state = HuntState(jnp.int32(0), jnp.array(False), health, jnp.int32(4))
        return self._obs(state), state

    def step_env(self, key, state, actions):
        wolf, dog = actions["wolf"], actions["dog"]
        hits = (wolf == 1).astype(jnp.int32) + (dog == 1).astype(jnp.int32)
        health = jnp.maximum(state.health - jnp.array([1, 0]) * (dog == 2), 0)
        state = state.replace(step=state.step + 1, health=health, prey=state.prey - hits)
        state = state.replace(done=self.is_terminal(state))
        dones = {"wolf": health[0] == 0, "dog": health[1] == 0, "__all__": state.done}
        shaped = {"shaped_reward": {"wolf": 10 * hits, "dog": 20 * hits}}
        return self._obs(state), state, dict.fromkeys(self.agents, hits), dones, shaped

    def is_terminal(self, state):
        return (state.prey <= 0) | (state.health == 0).all() | (state.step >= 6) | state.done

    def get_avail_actions(self, state):
        alive = state.health > 0
        return {
            "wolf": jnp.array([True, False]) | alive[0],
            "dog": jnp.array([True, False, False]) | alive[1],
        }

    def action_space(self, agent):
        return Discrete({"wolf": 2, "dog": 3}[agent])

    def _obs(self, state):
        return {"wolf": state.health[:1] + 0.0, "dog": jnp.stack([state.prey, state.step]) + 0.0}


def test_agents_are_players_with_masks_padded_views_and_numbers():
    env = JaxMarlEnv("jaxmarl:hunt", Hunt(), team=True)
    envs.check(env, (), KEY)
    assert env.num_players == 2
    assert env.shared_reward
    assert env.action_space(()) == OwnDiscrete(3)
    _, (obs, _, _, reward, terminated, truncated, final) = play_numpy(env, (), 200, legal)
    assert not final["obs"][:, 0, 1].any()  # the wolf's observation has one number, and ends with zeros
    np.testing.assert_array_equal(obs["player"], np.tile([0, 1], (200, 1)))
    assert not obs["action_mask"][:, 0, 2].any()  # the wolf has two actions
    out = obs["obs"][:, 0, 0] == 0
    assert out.any()
    np.testing.assert_array_equal(obs["action_mask"][out, 0], [[True, False, False]] * out.sum())
    np.testing.assert_array_equal(reward[:, 0], reward[:, 1])
    prey, step = final["obs"][:, 1].T
    np.testing.assert_array_equal(terminated, np.repeat((prey <= 0)[:, None], 2, 1))
    np.testing.assert_array_equal(truncated, np.repeat(((prey > 0) & (step >= 6))[:, None], 2, 1))
    assert terminated.any()
    assert truncated.any()


def test_the_state_of_the_world_is_for_critics_and_shaped_rewards_for_learning():
    env = JaxMarlEnv("jaxmarl:hunt", Hunt(), player_number=False, world_state=True, shaped_reward=0.5)
    envs.check(env, (), KEY)
    assert "player" not in env.observation_space(()).spaces
    obs, state = env.reset(KEY, ())
    world = np.concatenate([obs["obs"][0, :1], obs["obs"][1]])
    np.testing.assert_array_equal(obs["privileged"], [world, world])
    *_, info = env.step(KEY, state, jnp.array([1, 1]), ())
    _, _, reward, *_ = env.step(KEY, state, jnp.array([1, 1]), ())
    np.testing.assert_array_equal(info["own_reward"], [2, 2])
    np.testing.assert_array_equal(reward, [2 + 10, 2 + 20])


def test_battles_of_two_teams_have_no_success_of_all_players():
    class Battle(Hunt):
        num_allies = 1

        def reset(self, key):
            obs, state = super().reset(key)
            return obs, state.replace(unit_alive=state.health > 0)

        def step_env(self, key, state, actions):
            obs, state, *rest = super().step_env(key, state, actions)
            return obs, state.replace(unit_alive=state.health > 0), *rest

    for team in (True, False):
        env = JaxMarlEnv("jaxmarl:battle", Battle(), team=team)
        _, state = env.reset(KEY, ())
        *_, info = env.step(KEY, state, jnp.array([0, 0]), ())
        assert ("is_success" in info) == team


def test_a_limit_of_steps_may_be_an_end_of_the_task():
    env = JaxMarlEnv("jaxmarl:hunt", Hunt(), limit_terminates=True)
    *_, terminated, truncated, final = play_numpy(env, (), 100, legal)[1]
    limited = (final["obs"][:, 1, 0] > 0) & (final["obs"][:, 1, 1] >= 6)
    assert limited.any()
    assert terminated[limited].all()
    assert not truncated.any()


def test_agents_of_different_kinds_are_refused():
    class Odd(Hunt):
        def action_space(self, agent):
            return Discrete(2) if agent == "wolf" else SimpleNamespace(shape=(2,), low=0, high=1)

    with pytest.raises(ConfigError, match="jaxmarl:odd"):
        JaxMarlEnv("jaxmarl:odd", Odd())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("MPE_simple_spread_v3", {"world_state": True}),
        ("MPE_simple_speaker_listener_v4", {}),
        ("HeuristicEnemySMAX", {"scenario": "3m", "world_state": True}),
        ("overcooked", {"layout": "cramped_room", "shaped_reward": 1.0}),
        pytest.param("hanabi", {}, marks=pytest.mark.slow),
        pytest.param("switch_riddle", {}, marks=pytest.mark.slow),
        pytest.param("coin_game", {}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("default")
def test_installed_environments_keep_the_contract(name, kwargs):
    pytest.importorskip("jaxmarl", reason="pip install 'rlkit-jax[jaxmarl]' runs this")
    env, params = envs.make(f"jaxmarl:{name}", **kwargs)
    envs.check(env, params, jax.random.key(1))
    assert f"jaxmarl:{name}" in envs.names("jaxmarl")
    assert env.num_players == len(env.env.agents)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("HeuristicEnemySMAX", {"scenario": "3n"}, ["scenario='3n'", "3m"]),
        ("overcooked", {"layout": "room"}, ["layout='room'"]),
        ("MPE_simple_spread_v3", {"shaped_reward": 1.0}, ["shaped_reward=1.0"]),
        ("MPE_simple_spread_v3", {"world_state": 1}, ["world_state=1"]),
        ("MPE_simple_spred_v3", {}, ["MPE_simple_spread_v3"]),
        *((name, {}, [name]) for name in jaxmarl.CANNOT_RUN),
    ],
)
def test_mistakes_are_one_line(name, kwargs, words):
    pytest.importorskip("jaxmarl", reason="pip install 'rlkit-jax[jaxmarl]' runs this")
    with mistake(*words):
        envs.make(f"jaxmarl:{name}", **kwargs)

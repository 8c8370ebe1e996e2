"""Games of pgx for agents that plan: all players' moves by one agent, the state of the game, its rules as a model."""

import jax
import numpy as np
import pytest
from suite_stand_ins import KEY, Race, legal, play_numpy

from rlkit import envs
from rlkit.agents.common import user_networks
from rlkit.envs import wrap
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.names import GAME_STATE
from rlkit.networks.features import leaves, to_normalize
from rlkit.spaces import shape_of
from rlkit.types import ConfigError

# Warnings of the libraries cannot be fixed here.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::UserWarning")]


def race(opponent="none", **kwargs):
    return PgxEnv("pgx:race", Race(), opponent, **kwargs)


def test_one_agent_moves_for_both_players():
    env = race()
    _, (_, state, action, reward, terminated, truncated, final) = play_numpy(env, (), 200, legal)
    assert set(state.current_player) == {0, 1}
    assert not truncated.any()
    rows = np.arange(200)
    own = state.score[rows, state.current_player] + action
    other = state.score[rows, 1 - state.current_player]
    moves_again = (action == 1)[:, None]
    view = np.where(moves_again, np.stack([own, other], 1), np.stack([other, own], 1))
    np.testing.assert_array_equal(final["obs"], view)  # of the player to move next
    np.testing.assert_array_equal(terminated, own >= 4)
    np.testing.assert_array_equal(reward, np.where(terminated, 1, 0))  # of the player who moved, and won


def test_both_players_act_and_one_move_counts():
    env = race("self")
    assert env.num_players == 2
    envs.check(env, (), KEY)
    _, (obs, state, action, reward, terminated, truncated, final) = play_numpy(env, (), 200, legal)
    rows, player = np.arange(200), state.current_player
    assert set(player) == {0, 1}
    mask = obs["action_mask"][:-1]  # of the next steps
    np.testing.assert_array_equal(mask[rows[:-1], player[1:]], [[False, True, True]] * 199)
    np.testing.assert_array_equal(mask[rows[:-1], 1 - player[1:]], [[True, False, False]] * 199)
    np.testing.assert_array_equal(action[rows, 1 - player], 0)
    score = state.score.copy()
    score[rows, player] += action[rows, player]
    np.testing.assert_array_equal(final["obs"], np.stack([score, score[:, ::-1]], 1))  # each begins with its own
    over = score[rows, player] >= 4
    np.testing.assert_array_equal(terminated, np.stack([over, over], 1))
    assert not truncated.any()
    np.testing.assert_array_equal(reward[rows, player], np.where(over, 1, 0))
    np.testing.assert_array_equal(reward.sum(1), 0)


def test_the_model_steps_as_the_environment_does():
    env = race()
    model = env.game_model(())

    def step(carry, key):
        obs, state = carry
        action = legal(obs, key)
        _, model_obs, model_reward, discount = model.step(key, model.state(obs), action)
        before = model.player(obs)
        obs, state, reward, terminated, _, info = env.step(key, state, action, ())
        final = info["final_observation"]
        pairs = model_obs, {name: x for name, x in final.items() if name != GAME_STATE}
        return (obs, state), (*pairs, model_reward, reward, discount, terminated, before == model.player(final))

    start = env.reset(KEY, ())
    found, expected, model_reward, reward, discount, terminated, same = jax.device_get(
        jax.lax.scan(step, start, jax.random.split(KEY, 100))[1]
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    np.testing.assert_array_equal(model_reward, reward)
    np.testing.assert_array_equal(discount, np.where(terminated, 0, np.where(same, 1, -1)))
    assert set(discount) == {-1, 0, 1}


def test_the_state_of_a_game_is_in_the_space_and_is_no_feature():
    env = race()
    space = env.observation_space(())
    obs, _ = env.reset(KEY, ())
    assert jax.tree.map(lambda x: (x.shape, x.dtype), obs) == jax.tree.map(
        lambda x: (x.shape, x.dtype), shape_of(space)
    )
    assert [leaf.name for leaf in leaves(space, obs)] == ["obs"]
    assert to_normalize(space) == ["['obs']"]
    for wrapper in ("flatten", "frame_stack:2"):
        wrapped = wrap(env, [wrapper])
        assert wrapped.observation_space(()).spaces[GAME_STATE] == space.spaces[GAME_STATE]
        after, _ = wrapped.reset(KEY, ())
        jax.tree.map(np.testing.assert_array_equal, after[GAME_STATE], obs[GAME_STATE])


@pytest.mark.parametrize("privileged", [False, True])
def test_a_network_of_the_user_has_no_state_of_a_game(privileged):
    obs_space = race().observation_space(())

    def apply(params, obs):
        assert set(obs) == {"action_mask", "obs"}
        return obs["obs"].sum(-1) * params

    pair = (lambda key, obs: np.float32(1.0)), apply
    network = user_networks.checked(pair, obs_space, "V", np.array([], int), privileged=privileged)
    obs, _ = race().reset(KEY, ())
    assert network.apply(*network.init(KEY, obs), obs)[0] == 0


def test_an_opponent_beside_the_state_of_the_game():
    env = race("random", game_state=True)
    assert env.observation_space(()) == race().observation_space(())
    assert env.game_model(()) is not None
    assert race("random").game_model(()) is None
    assert race("self", game_state=True).game_model(()) is None
    assert GAME_STATE not in race("random").observation_space(()).spaces
    _, (obs, *_) = play_numpy(env, (), 50, legal)
    np.testing.assert_array_equal(jax.vmap(env.game_model(()).player)(obs), 0)


def test_a_game_for_three_has_no_model():
    game = Race()
    game.num_players = 3
    with pytest.raises(ConfigError, match="at most two players"):
        PgxEnv("pgx:race", game, "none")
    with pytest.raises(ConfigError, match="at most two players"):
        PgxEnv("pgx:race", game, "random", game_state=True).game_model(())


@pytest.mark.thorough
def test_settings_of_an_installed_game():
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    env, params = envs.make("pgx:tic_tac_toe", opponent="none")
    envs.check(env, params, jax.random.key(1))
    _, (obs, state, _, reward, terminated, _, _) = play_numpy(env, params, 200, legal)
    assert set(state.current_player) == {0, 1}
    assert set(reward[terminated]) <= {0, 1}, "who moves last does not lose"
    assert not obs["obs"][terminated].any(), "a new game begins with an empty board, whoever moves first"
    with pytest.raises(ConfigError, match="opponent='me' must be one of random, self, none"):
        envs.make("pgx:tic_tac_toe", opponent="me")
    with pytest.raises(ConfigError, match="game_state=1 must be true or false"):
        envs.make("pgx:tic_tac_toe", game_state=1)


def test_an_opening_is_of_random_moves():
    """Of up to two moves by 1 or 2, each as often as not; one that ends the game is none."""
    env = race("none", opening=2)
    envs.check(env, (), KEY)
    obs, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(KEY, 400), ())
    total, count = np.unique(np.asarray(state.score).sum(1), return_counts=True)
    np.testing.assert_array_equal(total, [0, 1, 2, 3, 4])
    assert 100 < count[0] < 170  # a third
    assert not state.terminated.any()
    np.testing.assert_array_equal(np.asarray(obs["obs"])[:, 0], state.score[np.arange(400), state.current_player])
    _, state = jax.jit(jax.vmap(race("none", opening=9).reset, (0, None)))(jax.random.split(KEY, 400), ())
    assert not state.terminated.any()
    assert 0.2 < np.mean(np.asarray(state.score).sum(1) == 0) < 0.8  # the openings that were over, and those of none
    assert env.with_all_players().opening == 0  # a match has one of its own
    for opening in (-1, 1.5, True, "long"):
        with pytest.raises(ConfigError, match=r"opening=.*at least 0"):
            envs.make("pgx:tic_tac_toe", opening=opening)


@pytest.mark.thorough
def test_no_agent_plans_with_cards_that_its_player_does_not_see():
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    env, params = envs.make("pgx:kuhn_poker", opponent="none")
    with pytest.raises(ConfigError, match="kuhn_poker"):
        env.game_model(params)

"""Matches of two policies in a race to 4, whose results are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from suite_stand_ins import Race

from rlkit.envs import probes, wrappers
from rlkit.envs.suites.pgx import PgxEnv
from rlkit.training.matches import Contestant, match
from rlkit.types import ConfigError


def race():
    return PgxEnv("pgx:race", Race(), "self")


def steady(amount):
    """Adds the same amount whenever it is to move."""

    def act(actor, memory, obs, key):
        return memory + 1, jnp.where(obs["action_mask"][0], 0, actor), ()

    return Contestant(act, jnp.int32(amount), jnp.int32(0))


def drawn():
    """Adds 1 or 2 by its key."""

    def act(actor, memory, obs, key):
        return (), jnp.where(obs["action_mask"][0], 0, jax.random.randint(key, (), 1, 3)), ()

    return Contestant(act, ())


def play(one, other, **sizes):
    return jax.device_get(jax.jit(lambda key: match(race(), (), (one, other), key, **sizes))(jax.random.key(0)))


def test_who_adds_one_moves_again_and_wins_from_both_places():
    result = play(steady(1), steady(2), num_pairs=8)
    assert result.finished.all()
    np.testing.assert_array_equal(result.returns, np.broadcast_to([1.0, -1.0], (8, 2, 2)))
    assert set(np.ravel(result.lengths)) == {4, 5}  # as either began
    np.testing.assert_array_equal(np.sort(result.lengths), [[4, 5]] * 8)  # each began one game of a pair


def test_equal_policies_get_in_the_second_game_what_the_other_got_in_the_first():
    result = play(drawn(), drawn(), num_pairs=64)
    assert result.finished.all()
    np.testing.assert_array_equal(result.returns.sum(-1), 0)
    alike = play(steady(2), steady(2), num_pairs=8)
    np.testing.assert_array_equal(alike.returns[:, 0], -alike.returns[:, 1])
    np.testing.assert_array_equal(alike.lengths, 3)


def test_an_opening_makes_games_differ():
    assert len(np.unique(play(steady(2), steady(2), num_pairs=64).lengths)) == 1
    assert len(np.unique(play(steady(2), steady(2), num_pairs=64, opening=2).lengths)) > 1


def test_games_that_are_cut_are_not_finished():
    result = play(steady(2), steady(2), num_pairs=2, max_steps=2)
    assert not result.finished.any()
    np.testing.assert_array_equal(result.lengths, 2)


def test_results_are_of_the_games_own_rewards_and_ends():
    def of(env, **sizes):
        return jax.device_get(
            jax.jit(lambda key: match(env, (), (steady(1), steady(2)), key, num_pairs=4, **sizes))(jax.random.key(0))
        )

    np.testing.assert_array_equal(of(wrappers.ScaleReward(race(), -1.0)).returns, of(race()).returns)
    cut = of(wrappers.TimeLimit(race(), 4))
    np.testing.assert_array_equal(np.sort(cut.finished), [[False, True]] * 4)  # of 5 and of 4 steps
    np.testing.assert_array_equal(cut.lengths, 4)


def test_a_match_needs_two_players():
    with pytest.raises(ConfigError, match="3 players"):
        match(probes.Players(), (), (drawn(), drawn()), jax.random.key(0), num_pairs=1)

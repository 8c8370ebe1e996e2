"""The config alphazero/tic_tac_toe against every line of play of a perfect opponent, and of any opponent."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlkit
from rlkit import envs
from rlkit.runs import loop
from rlkit.runs.config.load import load_config

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::UserWarning")]


LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@cache
def move_values(board):
    """The value of each legal move for the player to move, whose stones are 1 and the other's -1: a dict."""
    values = {}
    for move in (place for place in range(9) if not board[place]):
        after = (*board[:move], 1, *board[move + 1 :])
        if any(all(after[place] == 1 for place in line) for line in LINES):
            values[move] = 1
        else:
            values[move] = -max(move_values(tuple(-stone for stone in after)).values(), default=0)
    return values


def optimal(obs):
    """The legal moves of observations [B, ...] that minimax plays, [B, 9] bool."""
    boards = np.asarray(obs["obs"], int).reshape(-1, 9, 2)
    values = [move_values(tuple(board)) for board in (boards[..., 0] - boards[..., 1]).tolist()]
    return np.array([[move in of and of[move] == max(of.values()) for move in range(9)] for of in values])


@cache
def rules():
    """Start of a game, and its step and observations for up to 1024 games, each compiled once."""
    env, _ = envs.make("pgx:tic_tac_toe", opponent="none")

    def on_padded(function):
        compiled = jax.jit(jax.vmap(function))

        def call(*arguments):
            games = len(jax.tree.leaves(arguments)[0])
            widths = lambda x: [(0, 1024 - games)] + [(0, 0)] * (x.ndim - 1)  # noqa: E731
            padded = jax.tree.map(lambda x: np.pad(x, widths(x), "edge"), arguments)
            return jax.tree.map(lambda x: np.asarray(x)[:games], compiled(*padded))

        return call

    return env.env.init(jax.random.key(0)), on_padded(env.env.step), on_padded(env._observe), on_padded


def results(act, replies, *, first):
    """Numbers of games that `act` wins, draws and loses as the first or second player, over all replies to its moves.

    `act` maps an observation to an action, and `replies` maps observations [B, ...] to what the opponent plays,
    [B, 9] bool.
    """
    start, step, observe, on_padded = rules()
    act, state = on_padded(act), jax.tree.map(lambda x: np.asarray(x)[None], start)
    player = state.current_player[0] if first else 1 - state.current_player[0]
    count = np.zeros(3, int)
    while len(state.current_player):
        obs = observe(state)
        if state.current_player[0] == player:
            action = act(obs)
        else:
            rows, action = np.nonzero(replies(obs))
            state = jax.tree.map(lambda x, rows=rows: x[rows], state)
        state = step(state, action.astype(np.int32))
        over, reward = state.terminated, state.rewards[:, player]
        count += [(over & (reward == sign)).sum() for sign in (1, 0, -1)]
        state = jax.tree.map(lambda x, goes_on=~over: x[goes_on], state)
    return count.tolist()


def legal(obs):
    """All legal moves, [B, 9] bool."""
    return obs["action_mask"]


def first_legal(obs):
    return jnp.argmax(obs["action_mask"])


@pytest.mark.thorough
def test_all_replies_are_played():
    """To the first legal action. By itself, it loses as either player, and to optimal replies it never wins."""
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    for first in (True, False):
        wins, draws, losses = results(first_legal, legal, first=first)
        assert min(wins, losses) > 0
        assert wins + draws + losses > 50
        wins, draws, losses = results(first_legal, optimal, first=first)
        assert (wins, losses > 0) == (0, True)


def test_optimal_moves():
    """By minimax no first move loses; after a corner the center alone draws, and after the center a corner."""
    assert set(move_values((0,) * 9).values()) == {0}
    after_corner, after_center = ([0] * 9 for _ in range(2))
    after_corner[2] = after_center[4] = -1
    values = move_values(tuple(after_corner))
    assert [move for move in values if values[move] == 0] == [4]
    values = move_values(tuple(after_center))
    assert [move for move in values if values[move] == 0] == [0, 2, 6, 8]
    assert move_values((1, 1, 0, -1, -1, 0, 0, 0, 0)) == {2: 1, 5: 0, 6: -1, 7: -1, 8: -1}


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_tic_tac_toe_is_never_lost(tmp_path, seed):
    """To a perfect player, whatever optimal moves it chooses, and to any other one. Each seed takes 70 CPU seconds."""
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    config = load_config("alphazero/tic_tac_toe", {"seed": seed})
    policy = rlkit.load(loop.train(config, out=tmp_path / "run", show=False).run)
    act = lambda obs: policy.policy(policy.actor, policy.memory, obs, jax.random.key(0))[1]  # noqa: E731
    for first in (True, False):
        wins, draws, losses = results(act, optimal, first=first)
        assert (wins, losses) == (0, 0)
        assert draws > 0
        wins, _, losses = results(act, legal, first=first)
        assert losses == 0
        assert wins > 0

"""The config alphazero/tic_tac_toe against every line of play of an opponent, so against a perfect one as well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlkit
from rlkit import envs
from rlkit.runs import loop
from rlkit.runs.config.load import load_config

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::UserWarning")]


def results(act, *, first):
    """Numbers of games that `act` wins, draws and loses as the first or second player, over all replies to its moves.

    `act` maps observations [B, ...] to actions [B].
    """
    env, _ = envs.make("pgx:tic_tac_toe", opponent="none")
    step, observe = jax.jit(jax.vmap(env.env.step)), jax.jit(jax.vmap(env._observe))
    state = jax.tree.map(lambda x: x[None], env.env.init(jax.random.key(0)))
    player = state.current_player[0] if first else 1 - state.current_player[0]
    count = np.zeros(3, int)
    while len(state.current_player):
        if state.current_player[0] == player:
            action = act(observe(state))
        else:
            rows, action = np.nonzero(np.asarray(state.legal_action_mask))
            state = jax.tree.map(lambda x, rows=rows: x[rows], state)
        state = step(state, jnp.asarray(action, jnp.int32))
        over, reward = np.asarray(state.terminated), np.asarray(state.rewards)[:, player]
        count += [(over & (reward == sign)).sum() for sign in (1, 0, -1)]
        state = jax.tree.map(lambda x, goes_on=~over: x[goes_on], state)
    return count.tolist()


@pytest.mark.thorough
def test_all_replies_are_played():
    """To the first legal action. By itself, it loses as either player."""
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    for first in (True, False):
        wins, draws, losses = results(lambda obs: jnp.argmax(obs["action_mask"], -1), first=first)
        assert min(wins, losses) > 0
        assert wins + draws + losses > 50


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.timeout(1800)
def test_tic_tac_toe_is_never_lost(tmp_path):
    """Measured with seed 0: 90 seconds of training on two cores."""
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    run = loop.train(load_config("alphazero/tic_tac_toe"), out=tmp_path / "run", show=False).run
    policy = rlkit.load(run)
    act = jax.jit(lambda obs: policy.policy(policy.actor, policy.memory, obs, jax.random.key(0))[1])
    for first in (True, False):
        wins, _, losses = results(act, first=first)
        assert losses == 0
        assert wins > 0

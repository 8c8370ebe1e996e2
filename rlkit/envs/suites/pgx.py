"""Games of pgx in rlkit's protocol, from the view of player 0; opponents make random legal moves."""

from typing import Any

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import Adapter, check_keywords, known_task, library, standard_promotion, unbounded_box
from rlkit.names import ACTION_MASK
from rlkit.types import Array, Key, PyTree


class PgxEnv(Adapter):
    """A game of pgx. Observations are {"action_mask": [A] bool, "obs": the view of player 0}.

    A step is player 0's move and all moves of others before its next turn; the reward is player 0's sum over them. An
    illegal move ends the game with pgx's penalty. The player who begins is drawn by pgx.
    """

    def __init__(self, name: str, env: Any):
        self.name = name
        self.env = env
        with standard_promotion():
            state = jax.eval_shape(env.init, jax.eval_shape(jax.random.key, 0))
        (size,), view = state.legal_action_mask.shape, state.observation
        self._action_space = spaces.Discrete(size)
        self._obs_space = spaces.Dict(
            {ACTION_MASK: unbounded_box((size,), bool), "obs": unbounded_box(view.shape, view.dtype)}
        )

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        init_key, loop_key = jax.random.split(key)
        if self.env.num_players == 1:
            return self._observe(state := self.env.init(init_key)), state

        def not_ready(carry: tuple[Any, Key]) -> Array:
            return (carry[0].current_player != 0) | _over(carry[0])

        def move(carry: tuple[Any, Key]) -> tuple[Any, Key]:
            state, key = carry
            init_key, move_key, next_key = jax.random.split(key, 3)
            moved, new_game = self._random_move(state, move_key), self.env.init(init_key)
            return jax.tree.map(lambda a, b: jnp.where(_over(state), a, b), new_game, moved), next_key

        # A game that ends before player 0's first turn is not an episode; it is replaced by a new one.
        state, _ = jax.lax.while_loop(not_ready, move, (self.env.init(init_key), loop_key))
        return self._observe(state), state

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        step_key, loop_key = jax.random.split(key)
        state = self.env.step(state, action, step_key)

        def others_turn(carry: tuple[Any, Array, Key]) -> Array:
            return (carry[0].current_player != 0) & ~_over(carry[0])

        def move(carry: tuple[Any, Array, Key]) -> tuple[Any, Array, Key]:
            state, total, key = carry
            move_key, next_key = jax.random.split(key)
            state = self._random_move(state, move_key)
            return state, total + state.rewards[0], next_key

        carry = state, state.rewards[0], loop_key
        if self.env.num_players > 1:
            carry = jax.lax.while_loop(others_turn, move, carry)
        state, reward, _ = carry
        return self._observe(state), state, reward, state.terminated, state.truncated

    def _random_move(self, state: Any, key: Key) -> Any:
        action_key, step_key = jax.random.split(key)
        action = jax.random.categorical(action_key, jnp.where(state.legal_action_mask, 0.0, -jnp.inf))
        return self.env.step(state, action, step_key)

    def _observe(self, state: Any) -> PyTree:
        # Not state.observation: at the end of a game that may be the view of another player.
        return {ACTION_MASK: state.legal_action_mask, "obs": self.env._observe(state, jnp.int32(0))}


def names() -> list[str]:
    """Return the names of pgx: tic_tac_toe, connect_four, go_9x9, 2048, minatar-breakout, ..."""
    return list(library("pgx", "pgx").available_envs())


def make(task: str, /, **kwargs: Any) -> tuple[PgxEnv, tuple[()]]:
    """Make a game of pgx and its (empty) parameters.

    Args:
      task: a name of pgx.
      kwargs: none; pgx has no settings and no time limit, for which there is the wrapper time_limit.

    Raises:
      ConfigError: pgx is not installed, the name is unknown, or a keyword was given.
    """
    name = f"pgx:{known_task(task, names(), 'pgx:')}"
    check_keywords(name, kwargs, ())
    with standard_promotion():
        return PgxEnv(name, library("pgx", "pgx").make(task)), ()


def _over(state: Any) -> Array:
    return state.terminated | state.truncated

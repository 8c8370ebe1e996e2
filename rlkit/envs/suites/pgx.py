"""Games of pgx in rlkit's protocol: against random opponents, by self-play, or with all moves made by one agent."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from rlkit import spaces
from rlkit.envs.adapter import (
    Adapter,
    cast_like,
    check_keywords,
    known_task,
    library,
    standard_promotion,
    unbounded_box,
)
from rlkit.names import ACTION_MASK, GAME_STATE, shorten
from rlkit.types import Array, ConfigError, Key, Model, PyTree

_HIDDEN = ("kuhn_poker", "leduc_holdem")  # games for two with cards that only one of them sees
Opponent = Literal["random", "self", "none"]


class PgxEnv(Adapter):
    """A game of pgx. Observations are {"action_mask": [A] bool, "obs": a player's view}, and "game_state" where asked.

    With the opponent `random`, a step is player 0's move and all random moves of others before its next turn. The view
    is that of player 0, and the reward player 0's sum over these moves. pgx draws the player who begins.

    With the opponent `self`, all P players of a game act, see `rlkit.types.Env`: each has its own view and reward. Only
    the move of the player who is to move counts; the others have action 0 as their only legal one.

    With the opponent `none`, a step is one move of whoever is to move. The view is that of the player to move next, and
    the reward that of the player who moved.

    An illegal move ends the game with pgx's penalty.

    With an opening of n moves, the first moves of a game are random, and their number is drawn from 0 to n. An agent
    that plays against itself so learns from games that it would not play.

    Args:
      name: of the environment.
      env: the game, as pgx makes it.
      opponent: see above.
      game_state: True for the leaf `game_state`, the arrays of pgx's state; None for True with the opponent `none`.
      opening: largest number of random moves at the start of a game; where they end the game, it starts without them.

    Raises:
      ConfigError: the opponent is `none`, and the game has more than two players.
    """

    def __init__(
        self, name: str, env: Any, opponent: Opponent = "random", game_state: bool | None = None, opening: int = 0
    ):
        self.name, self.env, self.opponent, self.opening = name, env, opponent, opening
        self.num_players = env.num_players if opponent == "self" else 1
        # The next observation is another player's, so that its value counts with the other sign.
        self.alternates = opponent == "none" and env.num_players > 1
        self.has_game_state = opponent == "none" if game_state is None else game_state
        if opponent == "none" and env.num_players > 2:
            raise ConfigError(
                f"opponent='none' needs a game of at most two players, and {name!r} has {env.num_players}; use 'random'"
            )
        with standard_promotion():
            self._state = state = jax.eval_shape(env.init, jax.eval_shape(jax.random.key, 0))
        (size,), view = state.legal_action_mask.shape, state.observation
        self._action_space = spaces.Discrete(size)
        parts: dict[str, spaces.Space] = {ACTION_MASK: unbounded_box((size,), bool)}
        if self.has_game_state:
            parts[GAME_STATE] = spaces.Tuple(tuple(unbounded_box(x.shape, x.dtype) for x in jax.tree.leaves(state)))
        self._obs_space = spaces.Dict(parts | {"obs": unbounded_box(view.shape, view.dtype)})

    def with_all_players(self) -> "PgxEnv":
        """Return the same game with the opponent `self` and the leaf `game_state`, for matches between policies."""
        return PgxEnv(self.name, self.env, "self", game_state=True)

    def game_model(self, params: Any) -> Model | None:
        """Return the rules of the game for agents that plan: the same with the opponents `none` and `random`.

        None without `game_state`. None also with the opponent `self`, where a stream is one player, who does not move
        in every step.

        Raises:
          ConfigError: the game has more than two players, or cards that a player does not see.
        """
        if not self.has_game_state or self.opponent == "self":
            return None
        if self.name.removeprefix("pgx:") in _HIDDEN:
            raise ConfigError(
                f"planning uses the state of the game, of which players of {self.name!r} do not see all; use an agent "
                "that does not plan, such as ppo"
            )
        if self.env.num_players > 2:
            raise ConfigError(
                f"planning needs a game of at most two players, and {self.name!r} has {self.env.num_players}; take "
                "another game"
            )
        return Model(lambda obs: obs[GAME_STATE], self._player, self._model_step)

    def _player(self, obs: PyTree) -> Array:
        return self._game(obs[GAME_STATE]).current_player.astype(jnp.int32)

    def _model_step(self, key: Key, state: PyTree, action: PyTree) -> tuple[PyTree, PyTree, Array, Array]:
        before = self._game(state)
        with standard_promotion():
            after = self.env.step(before, action, key)
            obs = {ACTION_MASK: after.legal_action_mask, "obs": self._view(after)}
        obs = {name: cast_like(x, self._observation_shape(())[name]) for name, x in obs.items()}
        sign = jnp.where(after.current_player == before.current_player, 1.0, -1.0)
        reward = after.rewards[before.current_player].astype(jnp.float32)
        return self._arrays(after), obs, reward, jnp.where(_over(after), 0.0, sign)

    def _arrays(self, state: Any) -> PyTree:
        """The leaf `game_state` of a state of pgx."""
        return tuple(map(cast_like, jax.tree.leaves(state), jax.tree.leaves(self._state)))

    def _game(self, arrays: PyTree) -> Any:
        """The state of pgx that has this leaf `game_state`."""
        return jax.tree.unflatten(jax.tree.structure(self._state), arrays)

    def _start(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        init_key, loop_key = jax.random.split(key)
        if self.env.num_players == 1 or self.opponent != "random":
            return self._observe(state := self._new_game(init_key)), state

        def not_ready(carry: tuple[Any, Key]) -> Array:
            return (carry[0].current_player != 0) | _over(carry[0])

        def move(carry: tuple[Any, Key]) -> tuple[Any, Key]:
            state, key = carry
            init_key, move_key, next_key = jax.random.split(key, 3)
            moved, new_game = self._random_move(state, move_key), self._new_game(init_key)
            return jax.tree.map(lambda a, b: jnp.where(_over(state), a, b), new_game, moved), next_key

        # A game that ends before player 0's first turn is not an episode; it is replaced by a new one.
        state, _ = jax.lax.while_loop(not_ready, move, (self._new_game(init_key), loop_key))
        return self._observe(state), state

    def _new_game(self, key: Key) -> Any:
        """The state of a new game after its opening."""
        if not self.opening:
            return self.env.init(key)
        init_key, length_key, moves_key = jax.random.split(key, 3)
        start = self.env.init(init_key)
        length = jax.random.randint(length_key, (), 0, self.opening + 1)

        def move(index: Array, state: Any) -> Any:
            return self._random_move(state, jax.random.fold_in(moves_key, index))

        # Until a game is over, as moves after its end are none; such a game is replaced by its start.
        state = jax.lax.fori_loop(0, length, move, start)
        return jax.tree.map(lambda a, b: jnp.where(_over(state), a, b), start, state)

    def _advance(self, key: Key, state: Any, action: PyTree, params: Any) -> tuple[PyTree, Any, Array, Array, Array]:
        step_key, loop_key = jax.random.split(key)
        player = state.current_player
        if self.num_players > 1:
            state = self.env.step(state, action[player], step_key)
            terminated, truncated = (
                jnp.broadcast_to(flag, (self.num_players,)) for flag in (state.terminated, state.truncated)
            )
            return self._observe(state), state, state.rewards, terminated, truncated
        state = self.env.step(state, action, step_key)
        if self.opponent == "none":
            return self._observe(state), state, state.rewards[player], state.terminated, state.truncated

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
        if self.num_players > 1:
            return self._observe_all(state)
        # Not state.observation: at the end of a game that may be the view of another player.
        view = self._view(state) if self.opponent == "none" else self.env._observe(state, jnp.int32(0))
        obs = {ACTION_MASK: state.legal_action_mask, "obs": view}
        return obs | {GAME_STATE: self._arrays(state)} if self.has_game_state else obs

    def _observe_all(self, state: Any) -> PyTree:
        """The observations of all players, leaves [P, ...]."""
        players = jnp.arange(self.num_players, dtype=jnp.int32)
        waiting = jnp.arange(state.legal_action_mask.shape[0]) == 0
        to_move = (players == state.current_player)[:, None]
        obs = {
            ACTION_MASK: jnp.where(to_move, state.legal_action_mask, waiting),
            "obs": jax.vmap(self.env._observe, (None, 0))(state, players),
        }
        if not self.has_game_state:
            return obs
        arrays = self._arrays(state)
        return obs | {GAME_STATE: jax.tree.map(lambda x: jnp.broadcast_to(x, (len(players), *x.shape)), arrays)}

    def _view(self, state: Any) -> Array:
        return self.env._observe(state, state.current_player)


def names() -> list[str]:
    """Return the names of pgx: tic_tac_toe, connect_four, go_9x9, 2048, minatar-breakout, ..."""
    return list(library("pgx", "pgx").available_envs())


def make(task: str, /, **kwargs: Any) -> tuple[PgxEnv, tuple[()]]:
    """Make a game of pgx and its (empty) parameters.

    Args:
      task: a name of pgx.
      kwargs: `opponent`, `game_state` and `opening`, see `PgxEnv`. pgx has no settings of its own, and no time limit,
        for which there is the wrapper time_limit.

    Raises:
      ConfigError: pgx is not installed, the name is unknown, or a keyword or its value is.
    """
    name = f"pgx:{known_task(task, names(), 'pgx:')}"
    check_keywords(name, kwargs, ("opponent", "game_state", "opening"))
    if (opponent := kwargs.get("opponent", "random")) not in get_args(Opponent):
        raise ConfigError(f"opponent={shorten(repr(opponent))} must be one of {', '.join(get_args(Opponent))}")
    if not isinstance(game_state := kwargs.get("game_state", False), bool):
        raise ConfigError(f"game_state={shorten(repr(game_state))} must be true or false")
    if not isinstance(opening := kwargs.get("opening", 0), int) or isinstance(opening, bool) or opening < 0:
        raise ConfigError(f"opening={shorten(repr(opening))} must be an integer of at least 0; try 4")
    with standard_promotion():
        return PgxEnv(name, library("pgx", "pgx").make(task), **kwargs), ()


def _over(state: Any) -> Array:
    return state.terminated | state.truncated

"""Matches between two policies in a game of two players."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlkit._mesh import vary_like
from rlkit.envs.checks import legal_action
from rlkit.names import OWN_REWARD
from rlkit.ops._arrays import check_key
from rlkit.types import Array, ConfigError, Env, Key, PyTree, num_players


class Contestant(NamedTuple):
    """A policy that takes part in a match.

    Fields:
      policy: (actor, memory, obs, key) -> memory, action, extras, as of `Agent`.
      actor: its parameters.
      memory: at the start of an episode, of one stream.
    """

    policy: Callable[[PyTree, PyTree, PyTree, Key], tuple[PyTree, PyTree, PyTree]]
    actor: PyTree
    memory: PyTree = ()


class Match(NamedTuple):
    """Results of G pairs of games. In the second game of a pair the contestants have changed their places."""

    returns: Array  # [G, 2, 2] float32: of pair, game and contestant, undiscounted, of the game's own rewards
    lengths: Array  # [G, 2] int32, in steps
    finished: Array  # [G, 2] bool, False where max_steps or a time limit cut the game


def match(
    env: Env,
    params: Any,
    contestants: tuple[Contestant, Contestant],
    key: Key,
    *,
    num_pairs: int,
    opening: int = 0,
    max_steps: int = 10_000,
) -> Match:
    """Play pairs of games between two contestants, who are player 0 and player 1 once each.

    Both games of a pair begin in the same state and have the same random moves and events, as long as the same actions
    are taken.

    Call it inside of `jax.jit`: outside, JAX compiles its loop again in every call.

    Args:
      env, params: of two players, see `Env`, whose observations both policies take.
      contestants: the two.
      key: of the starts, the random moves, and the policies.
      num_pairs: G.
      opening: the first steps of a game, in which all players make random legal moves: without them, two policies
        that do not draw their actions would play the same games over and over.
      max_steps: limit on the steps of a game.

    Returns:
      `Match`.

    Raises:
      ConfigError: the environment has not two players.
    """
    check_key(key)
    if num_players(env) != 2:
        raise ConfigError(f"env={getattr(env, 'name', env)!r} has {num_players(env)} players, and a match needs 2")
    start_key, run_key = jax.random.split(key)
    starts = jax.random.split(start_key, num_pairs)
    obs, state = jax.vmap(env.reset, (0, None))(jnp.repeat(starts, 2), params)  # [2 G, 2, ...], worlds and players
    places = jnp.tile(jnp.arange(2), num_pairs)  # [2 G], of the first contestant
    memories = tuple(
        jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (2 * num_pairs, *jnp.shape(x))), contestant.memory)
        for contestant in contestants
    )
    empty = Match(
        jnp.zeros((2 * num_pairs, 2), jnp.float32), jnp.zeros(2 * num_pairs, jnp.int32), jnp.zeros(2 * num_pairs, bool)
    )

    def by_player(one: Array, other: Array) -> Array:
        """The actions [2 G, ...] of the two contestants as those of the players of each world, [2 G, 2, ...]."""
        first = places.reshape(-1, *[1] * (one.ndim - 1)) == 0
        return jnp.stack([jnp.where(first, one, other), jnp.where(first, other, one)], 1)

    def unfinished(carry: tuple) -> Array:
        *_, over, _, time = carry
        return (time < max_steps) & ~jnp.all(over)

    worlds, action_space = jnp.arange(2 * num_pairs), env.action_space(params)

    def random_move(key: Key, obs: PyTree) -> PyTree:
        """Legal actions of both players of a world."""
        return jax.vmap(lambda key, obs: legal_action("match", action_space, key, obs))(jax.random.split(key), obs)

    def step(carry: tuple) -> tuple:
        obs, state, memories, over, result, time = carry
        keys = jax.random.split(jax.random.fold_in(run_key, time), (num_pairs, 4))
        keys = jnp.repeat(keys, 2, 0)  # the same in both games of a pair
        moves = []
        for contestant, memory, place, key in zip(contestants, memories, (places, 1 - places), keys.T[:2], strict=True):
            own = jax.tree.map(lambda x, place=place: x[worlds, place], obs)
            moves.append(jax.vmap(contestant.policy, (None, 0, 0, 0))(contestant.actor, memory, own, key))
        memories = tuple(memory for memory, *_ in moves)
        action = jax.tree.map(by_player, *(action for _, action, _ in moves))
        if opening:
            random = jax.vmap(random_move)(keys[:, 2], obs)
            action = jax.tree.map(lambda x, y: jnp.where(time < opening, y, x), action, random)
        obs, state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
            keys[:, 3], state, action, params
        )
        reward = info.get(OWN_REWARD, reward)
        gained = jnp.stack([reward[worlds, places], reward[worlds, 1 - places]], 1)
        result = Match(
            result.returns + jnp.where(over[:, None], 0.0, gained),
            jnp.where(over, result.lengths, time + 1),
            result.finished | (~over & terminated.any(1)),
        )
        over |= (terminated | truncated).any(1)
        return vary_like((obs, state, memories, over, result, time + 1), carry)

    carry = (obs, state, memories, empty.finished, empty, jnp.zeros((), jnp.int32))
    result = jax.lax.while_loop(unfinished, step, vary_like(carry, contestants[0].actor, contestants[1].actor))[4]
    return jax.tree.map(lambda x: x.reshape(num_pairs, 2, *x.shape[1:]), result)

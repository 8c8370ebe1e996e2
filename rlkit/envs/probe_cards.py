"""Probes of memory with the rules of POPGym (Morad et al. 2023): cards are shown, and an earlier one is to be named.

The observation is the suit of the current card, [4] float32 one-hot, and an action in Discrete(4) names a suit. An
episode shows all 52 cards of each deck, shuffled, one in each step, and is truncated then. A correct action has the
reward 1 over the number of steps that count, and another one minus that: the best return is 1, and the mean return of
random actions is -1/2.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.envs.probe_base import Probe, ProbeState
from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, ConfigError, Key, PyTree


class Cards(struct.PyTreeNode):
    """State of the decks. The next card is drawn when it is shown: shuffled decks would have to be kept as a whole."""

    key: Key  # [], of the draws of this episode
    left: Array  # [4] float32, cards of each suit that are left
    seen: Array  # [k] int32, suits, the one that counts first and the current one last


@dataclass(frozen=True)
class CardProbe(Probe):
    """Base of the card probes."""

    num_decks: int = field(default=1, metadata={"least": 1})

    @property
    def length(self) -> int:  # type: ignore[override]
        """Steps of an episode."""
        return 52 * self.num_decks - 1

    def observation_space(self, params: Any = ()) -> Space:
        return Box(0, 1, (4,))

    def action_space(self, params: Any = ()) -> Space:
        return Discrete(4)

    def _cue(self, key: Key) -> Cards:
        left = jnp.full((4,), 13.0 * self.num_decks)
        suit, left = _draw(key, jnp.asarray(self.length), left)
        return Cards(key, left, jnp.broadcast_to(suit, (self._num_seen,)))

    def _next_cue(self, state: ProbeState, action: PyTree) -> Cards:
        suit, left = _draw(state.cue.key, state.time, state.cue.left)
        return state.cue.replace(left=left, seen=self._next_seen(state.cue.seen, suit))

    def _observe(self, state: ProbeState) -> PyTree:
        return jax.nn.one_hot(state.cue.seen[-1], 4, dtype=jnp.float32)

    def _terminal(self, state: ProbeState) -> Array:
        return jnp.array(False)

    @property
    def _num_seen(self) -> int:
        raise NotImplementedError

    def _next_seen(self, seen: Array, suit: Array) -> Array:
        raise NotImplementedError


def _draw(key: Key, time: Array, left: Array) -> tuple[Array, Array]:
    """The suit [] of one of the cards that are left, each equally likely, and the cards left after it."""
    suit = jax.random.categorical(jax.random.fold_in(key, time), jnp.log(left)).astype(jnp.int32)
    return suit, left - jax.nn.one_hot(suit, 4, dtype=jnp.float32)


@dataclass(frozen=True)
class RepeatFirst(CardProbe):
    """Each action is to name the suit of the first card.

    POPGym's easy, medium and hard tasks have 1, 8 and 16 decks.
    """

    @property
    def _num_seen(self) -> int:
        return 2

    def _next_seen(self, seen: Array, suit: Array) -> Array:
        return seen.at[1].set(suit)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        return jnp.where(action == state.cue.seen[0], 1.0, -1.0) / self.length


@dataclass(frozen=True)
class RepeatPrevious(CardProbe):
    """Each action is to name the suit of the k-th of the latest cards, from k = 1, the current card, on.

    The first k - 1 actions do not count. POPGym's easy, medium and hard tasks have 1, 2 and 3 decks, and k = 4, 32, 64.

    Raises:
      ConfigError: k is not less than the number of cards.
    """

    k: int = 4

    def __post_init__(self):
        if self.k > self.length:
            raise ConfigError(f"Probe-RepeatPrevious.k={self.k} must be at most {self.length}, the steps of an episode")

    @property
    def _num_seen(self) -> int:
        return self.k

    def _next_seen(self, seen: Array, suit: Array) -> Array:
        return jnp.roll(seen, -1).at[-1].set(suit)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        reward = jnp.where(action == state.cue.seen[0], 1.0, -1.0) / (self.length + 1 - self.k)
        return jnp.where(state.time >= self.k - 1, reward, 0.0)

"""Probe of exploration: a chain with the rules of bsuite's deep sea (Osband et al. 2020), in one dimension."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.envs.probe_base import Probe, ProbeState
from rlkit.spaces import Box, Space
from rlkit.types import Array, Key, PyTree


@dataclass(frozen=True)
class Chain(Probe):
    """One of the two actions moves right, the other one left; only `length` steps right, the first to the last, pay.

    The observation is the place, [length + 1] float32 one-hot; an episode begins at the left end and has `length`
    steps. Which action moves right differs from place to place, and is the same in every episode. A step right costs
    0.01 / length, and the right end, which is reached by the last step or not at all, has the reward 1.

    The best return is 0.99. That of a policy that always moves left is 0. Random actions reach the end in one of
    2^length episodes, and up to then every reward speaks for moving left.
    """

    length: int = 40  # type: ignore[misc]

    def observation_space(self, params: Any = ()) -> Space:
        return Box(0, 1, (self.length + 1,))

    def _cue(self, key: Key) -> Array:
        return jnp.zeros((), jnp.float32)

    def _next_cue(self, state: ProbeState, action: PyTree) -> Array:
        step = jnp.where(self._moves_right(state, action), 1.0, -1.0)
        return jnp.clip(state.cue + step, 0.0, self.length)

    def _observe(self, state: ProbeState) -> PyTree:
        return jax.nn.one_hot(state.cue.astype(jnp.int32), self.length + 1, dtype=jnp.float32)

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        right = self._moves_right(state, action)
        at_the_end = right & (state.cue == self.length - 1)
        return jnp.where(at_the_end, 1.0, 0.0) - jnp.where(right, 0.01 / self.length, 0.0)

    def _moves_right(self, state: ProbeState, action: PyTree) -> Array:
        of_right = jnp.asarray(np.random.default_rng(0).integers(0, 2, self.length + 1), jnp.int32)
        return action == of_right[state.cue.astype(jnp.int32)]

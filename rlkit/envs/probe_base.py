"""Base class of the probe environments: its state, the automatic reset, and what a probe defines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.spaces import Box, Discrete, Space
from rlkit.types import Array, Key, PyTree


class ProbeState(struct.PyTreeNode):
    """State of a probe."""

    time: Array  # [] int32, steps of this episode so far
    cue: PyTree  # [] float32, drawn at the start of an episode; in BitFlip [2, length], Players [3], Nim [2], or Cards


@dataclass(frozen=True)
class Probe:
    """Base class of the probes: a time, a cue drawn at the start (-1 or 1, equally likely), and the automatic reset."""

    length: ClassVar[int] = 1  # steps of an episode; a field of some probes

    @property
    def name(self) -> str:
        return f"Probe-{type(self).__name__}"

    def reset(self, key: Key, params: Any = ()) -> tuple[PyTree, ProbeState]:
        """Start an episode: -> obs, state."""
        state = ProbeState(jnp.zeros((), jnp.int32), self._cue(key))
        return self._observe(state), state

    def step(
        self, key: Key, state: ProbeState, action: PyTree, params: Any = ()
    ) -> tuple[PyTree, ProbeState, Array, Array, Array, dict[str, Any]]:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        return self.step_with(self.reset, key, state, action, params)

    def step_with(
        self, start: Callable[[Key], tuple[PyTree, Any]], key: Key, state: ProbeState, action: PyTree, params: Any = ()
    ) -> tuple[PyTree, ProbeState, Array, Array, Array, dict[str, Any]]:
        """Take the same step, where a new episode starts as `start(key) -> obs, state` does."""
        reward = jnp.asarray(self._reward(state, action), jnp.float32)
        state = ProbeState(state.time + 1, self._next_cue(state, action))
        final_obs = self._observe(state)
        done = self._done(state)
        terminal = self._terminal(state)
        info = {"final_observation": final_obs, **self._info(state)}
        ended = jnp.any(done)  # for all players, where there are several
        obs, state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), start(key), (final_obs, state))
        return obs, state, reward, done & terminal, done & ~terminal, info

    def observation_space(self, params: Any = ()) -> Space:
        return Box(-1, 1, (1,))

    def action_space(self, params: Any = ()) -> Space:
        return Discrete(2)

    def _cue(self, key: Key) -> PyTree:
        return jax.random.rademacher(key, (), jnp.float32)

    def _next_cue(self, state: ProbeState, action: PyTree) -> PyTree:
        return state.cue

    def _done(self, state: ProbeState) -> Array:
        return state.time >= self.length

    def _observe(self, state: ProbeState) -> PyTree:
        """Return the observation, by default [1] float32, the cue."""
        return state.cue[None]

    def _info(self, state: ProbeState) -> dict[str, Array]:
        """Return what the info of a step has beside the final observation."""
        return {}

    def _reward(self, state: ProbeState, action: PyTree) -> Array | float:
        raise NotImplementedError

    def _terminal(self, state: ProbeState) -> Array:
        return jnp.array(True)

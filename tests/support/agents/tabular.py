"""A small random Markov decision process whose action values are known to the last digit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.spaces import Box, Discrete


class Where(struct.PyTreeNode):
    state: jax.Array  # [] int32
    time: jax.Array  # [] int32, steps of this episode so far


class Tabular:
    """5 states, 3 actions, transitions and rewards drawn once; one in five pairs ends the world.

    An episode starts anywhere and is cut off after 6 steps, which is not an end: the values are of a life without a
    limit. The observation is one-hot.
    """

    def __init__(self, num_states: int = 5, num_actions: int = 3, limit: int = 6):
        rng = np.random.default_rng(0)
        shape = (num_states, num_actions)
        self.next_state = rng.integers(0, num_states, shape).astype(np.int32)  # [S, A]
        self.reward = rng.normal(size=shape).astype(np.float32)  # [S, A]
        self.ends = rng.random(shape) < 0.2  # [S, A]
        assert 0 < self.ends.sum() < self.ends.size
        self.shape, self.limit = shape, limit

    def values(self, gamma: float) -> np.ndarray:
        """Q* [S, A] by value iteration in float64."""
        q = np.zeros(self.shape)
        for _ in range(1000):
            q = self.reward + gamma * np.where(self.ends, 0.0, q.max(-1)[self.next_state])
        return q

    def reset(self, key: jax.Array, params: Any = ()):
        state = Where(jax.random.randint(key, (), 0, self.shape[0]), jnp.zeros((), jnp.int32))
        return self._observe(state), state

    def step(self, key: jax.Array, state: Where, action: jax.Array, params: Any = ()):
        reward, ends = (jnp.asarray(table)[state.state, action] for table in (self.reward, self.ends))
        after = Where(jnp.asarray(self.next_state)[state.state, action], state.time + 1)
        final, truncated = self._observe(after), (after.time >= self.limit) & ~ends
        fresh = self.reset(key)
        obs, after = jax.tree.map(lambda new, old: jnp.where(ends | truncated, new, old), fresh, (final, after))
        return obs, after, reward, ends, truncated, {"final_observation": final}

    def observation_space(self, params: Any = ()):
        return Box(0, 1, (self.shape[0],))

    def action_space(self, params: Any = ()):
        return Discrete(self.shape[1])

    def _observe(self, state: Where):
        return jax.nn.one_hot(state.state, self.shape[0], dtype=jnp.float32)

"""An environment whose observations identify their step, and one of its kind with action masks."""

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple


class CounterState(struct.PyTreeNode):
    tag: jax.Array
    length: jax.Array
    time: jax.Array
    action: jax.Array


class Counter:
    """Observes [number of the episode, steps so far, last action]; the reward of step t is t + 10 * action.

    An episode lasts 2 to 5 steps; those with an even number terminate, the others are truncated.
    """

    name = "Counter"

    def reset(self, key, params):
        tag_key, length_key = jax.random.split(key)
        zero = jnp.zeros((), jnp.int32)
        length = jax.random.randint(length_key, (), 2, 6)
        state = CounterState(jax.random.uniform(tag_key), length, zero, zero)
        return self._obs(state), state

    def step(self, key, state, action, params):
        reward = state.time.astype(jnp.float32) + 10.0 * action.astype(jnp.float32)
        state = state.replace(time=state.time + 1, action=action)
        final, done, even = self._obs(state), state.time >= state.length, state.length % 2 == 0
        obs, state = jax.tree.map(lambda new, old: jnp.where(done, new, old), self.reset(key, params), (final, state))
        return obs, state, reward, done & even, done & ~even, {"final_observation": final}

    def observation_space(self, params):
        return Box([0, 0, 0], [1, 5, 2])

    def action_space(self, params):
        return Discrete(3)

    def _obs(self, state):
        return jnp.stack([state.tag, state.time.astype(jnp.float32), state.action.astype(jnp.float32)])


class Masked(Counter):
    """A Counter with a dictionary of observations: several dtypes and a mask."""

    def _obs(self, state):
        mask = jnp.arange(3) != state.time % 3
        return {
            "action_mask": mask,
            "count": state.time,
            "pair": (super()._obs(state), state.action * jnp.ones(2, int)),
        }

    def observation_space(self, params):
        pair = Tuple((super().observation_space(params), MultiDiscrete((3, 3))))
        return Dict({"action_mask": Box(False, True, (3,), bool), "count": Discrete(6), "pair": pair})

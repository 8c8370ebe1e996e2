"""Environments in JAX as users write them: rlkit's protocol, gymnax 1, and gymnax before 1.0."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from rlkit.spaces import Box, Discrete


class Reach:
    """rlkit's protocol: move a cart to a target; an episode has `limit` steps."""

    def __init__(self, limit=8):
        self.limit = limit

    def reset(self, key, params):
        state = {"x": jax.random.uniform(key, (2,), minval=-1, maxval=1), "time": jnp.int32(0)}
        return state["x"], state

    def step(self, key, state, action, params):
        x = state["x"].at[0].add(0.3 * jnp.clip(action[0], -1, 1)).clip(-3, 3)
        time = state["time"] + 1
        truncated = time == self.limit
        first, fresh = self.reset(key, params)
        after = jax.tree.map(lambda a, b: jnp.where(truncated, a, b), fresh, {"x": x, "time": time})
        info = {"final_observation": x}
        return jnp.where(truncated, first, x), after, -jnp.abs(x[0] - x[1]), jnp.bool_(False), truncated, info

    def observation_space(self, params):
        return Box(-3, 3, (2,))

    def action_space(self, params):
        return Box(-1, 1, (1,))


@struct.dataclass
class Params(environment.EnvParams):
    max_steps_in_episode: int = 10
    goal: float = 1.0


@struct.dataclass
class State(environment.EnvState):
    time: int
    x: jax.Array


class Walk(environment.Environment):
    """gymnax 1's base class, without the optional is_terminated: a walk on a line towards a goal."""

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        state = State(time=0, x=jax.random.uniform(key, (1,)))
        return state.x, state

    def step_env(self, key, state, action, params):
        x = state.x + 0.1 * (2 * action - 1)
        return x, State(time=state.time + 1, x=x), -jnp.abs(x[0] - params.goal), jnp.array(False), {}

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-10, 10, (1,), jnp.float32)


instance = Reach(limit=4)


class Pictures:
    """Random pictures [10, 10, 1] uint8, in episodes that end by chance; the action is to be a bit of the picture."""

    def reset(self, key, params):
        picture = jax.random.bits(key, (10, 10, 1), jnp.uint8)
        return picture, picture

    def step(self, key, state, action, params):
        reset_key, picture_key, end_key = jax.random.split(key, 3)
        final = jax.random.bits(picture_key, state.shape, jnp.uint8)
        terminated = jax.random.uniform(end_key) < 0.05
        picture = jnp.where(terminated, self.reset(reset_key, params)[0], final)
        reward = ((state[0, 0, 0] & 1).astype(action.dtype) == action).astype(jnp.float32)
        return picture, picture, reward, terminated, jnp.bool_(False), {"final_observation": final}

    def observation_space(self, params):
        return Box(0, 255, (10, 10, 1), jnp.uint8)

    def action_space(self, params):
        return Discrete(2)

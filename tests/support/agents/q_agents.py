"""Small agents that learn the values of actions, and a network whose values a test can write down."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents import dqn
from rlkit.spaces import Box, Dict
from rlkit.types import Transition

OBS = Box(-10, 10, (3,))
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": OBS})
SMALL = {"hidden_sizes": (8,), "capacity": 32, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.25}
HYPER = dqn.Hyper(gamma=0.9, huber_delta=1.0)


def example(space=OBS):
    obs = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(space.sample, jax.random.key(0)))
    zero = jnp.zeros(())
    return Transition(obs, jnp.zeros((), jnp.int32), zero, zero > 0, zero > 0, obs)


def start(agent, hyper=HYPER, space=OBS):
    return jax.jit(agent.init, static_argnums=3)(hyper, jax.random.key(0), example(space), 4)


def linear(outputs=()):
    """A network of one matrix, so that a test can write its values down. An action mask is not looked at."""

    def apply(params, obs):
        obs = obs["obs"] if isinstance(obs, dict) else obs
        return (obs @ params.reshape(3, -1)).reshape(*obs.shape[:-1], 4, *outputs)

    return (lambda key, obs: jax.random.normal(key, (3, 4, *outputs))), apply

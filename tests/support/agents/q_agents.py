"""Small agents that learn the values of actions, and a network whose values a test can write down."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents import dqn
from rlkit.agents.common.batches import Batch
from rlkit.spaces import Box, Dict, zeros
from rlkit.types import Transition

OBS = Box(-10, 10, (3,))
MASKED = Dict({"action_mask": Box(False, True, (4,), np.bool_), "obs": OBS})
SMALL = {"hidden_sizes": (8,), "capacity": 32, "batch_size": 4, "learning_starts": 0, "replay_ratio": 0.25}
HYPER = dqn.Hyper(gamma=0.9, huber_delta=1.0)
B = 6


def example(space=OBS):
    obs, zero = zeros(space), jnp.zeros(())
    return Transition(obs, jnp.zeros((), jnp.int32), zero, zero > 0, zero > 0, obs)


def start(agent, hyper=HYPER, space=OBS):
    return jax.jit(agent.init, static_argnums=3)(hyper, jax.random.key(0), example(space), 4)


def linear(outputs=()):
    """A network of one matrix, so that a test can write its values down. An action mask is not looked at."""

    def apply(params, obs):
        obs = obs["obs"] if isinstance(obs, dict) else obs
        return (obs @ params.reshape(3, -1)).reshape(*obs.shape[:-1], 4, *outputs)

    return (lambda key, obs: jax.random.normal(key, (3, 4, *outputs))), apply


def hand_made():
    """A batch with terminal states, one of a next value that must not be read, weights, and masks."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, B, 3)).astype(np.float32)
    mask = rng.random((2, B, 4)) < 0.6
    mask[..., 0] = True
    next_obs[2] = np.nan
    return Batch(
        obs={"action_mask": mask[0], "obs": obs},
        action=np.array([rng.choice(np.flatnonzero(legal)) for legal in mask[0]], np.int32),
        reward=rng.normal(size=B).astype(np.float32),
        discount=np.float32([0.9, 0.81, 0.0, 0.9, 0.0, 0.9]),
        next_obs={"action_mask": mask[1], "obs": next_obs},
        weight=np.float32([1, 0.5, 0.25, 1, 1, 0]),
    )

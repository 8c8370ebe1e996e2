"""Every agent learns where the reward depends on a camera, whose channels come first, and on a vector."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_trainings import mean_return, trained

from rlkit import agents
from rlkit.envs.probe_base import Probe
from rlkit.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.thorough
SMALL = {"hidden_sizes": (16,), "channels": (4,)}
REPLAY = {"capacity": 512, "batch_size": 64, "learning_starts": 64, "replay_ratio": 0.25}


@dataclass(frozen=True)
class Camera(Probe):
    """One step: the best sign of the action is that of the camera's bright half, times that of the vector's number."""

    box: bool

    def _cue(self, key):
        return jax.random.rademacher(key, (2,), jnp.float32)

    def _observe(self, state):
        left = jnp.arange(8)[None, None, :] < 4
        image = jnp.where(left == (state.cue[0] > 0), jnp.uint8(255), jnp.uint8(0)) * jnp.ones((2, 8, 8), jnp.uint8)
        return {"camera": image, "vector": state.cue[1:]}

    def _reward(self, state, action):
        sign = action[0] if self.box else jnp.where(action == 1, 1.0, -1.0)
        return sign * state.cue[0] * state.cue[1]

    def observation_space(self, params):
        return Dict({"camera": Box(0, 255, (2, 8, 8), np.uint8), "vector": Box(-1, 1, (1,))})

    def action_space(self, params):
        return Box(-1, 1, (1,)) if self.box else Discrete(2)


CASES = {
    "ppo": (40, {"num_minibatches": 4}),
    "pqn": (60, {"num_minibatches": 4}),
    "dqn": (60, REPLAY),
    "c51": (60, REPLAY | {"num_atoms": 11, "v_min": -2.0, "v_max": 2.0}),
    "qrdqn": (60, REPLAY | {"num_quantiles": 8}),
    "iqn": (60, REPLAY),
    "sac": (60, REPLAY),
    "td3": (160, REPLAY | {"replay_ratio": 0.5}),
}
FEW = ("ppo", "dqn", "sac")  # one of a family


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CASES])
def test_learning_from_a_camera_beside_a_vector(name):
    updates, settings = CASES[name]
    module, env = agents.get(name), Camera(box=name == "td3")
    hyper = module.Hyper(learning_rate=1e-3 if name == "td3" else 3e-3, gamma=0.9)
    agent, state = trained(module, module.Config(**SMALL | settings), hyper, (env, ()), updates, num_envs=16)
    # Without one of the two the mean is 0. TD3's policy saturates early and keeps some of its first mistakes.
    assert mean_return(agent, state, (env, ())) > (0.3 if name == "td3" else 0.9)

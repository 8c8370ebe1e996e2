"""Every agent learns where the reward depends on a camera, whose channels come first, and on a vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit import agents, training
from rlkit.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.thorough
SMALL = {"hidden_sizes": (16,), "channels": (4,)}
REPLAY = {"capacity": 512, "batch_size": 64, "learning_starts": 64, "replay_ratio": 0.25}


class Camera:
    """One step: the best sign of the action is that of the camera's bright half, times that of the vector's number."""

    def __init__(self, *, box):
        self.box = box

    def reset(self, key, params):
        signs = jax.random.rademacher(key, (2,), jnp.float32)
        return self._observe(signs), signs

    def _observe(self, signs):
        left = jnp.arange(8)[None, None, :] < 4
        image = jnp.where(left == (signs[0] > 0), jnp.uint8(255), jnp.uint8(0)) * jnp.ones((2, 8, 8), jnp.uint8)
        return {"camera": image, "vector": signs[1:]}

    def step(self, key, signs, action, params):
        sign = action[0] if self.box else jnp.where(action == 1, 1.0, -1.0)
        reward = (sign * signs[0] * signs[1]).astype(jnp.float32)
        final = self._observe(signs)
        obs, signs = self.reset(key, params)
        return obs, signs, reward, jnp.bool_(True), jnp.bool_(False), {"final_observation": final}

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
    agent = module.make(module.Config(**SMALL | settings), env.observation_space(()), env.action_space(()))
    init, step = training.make(agent, env, (), num_envs=16, num_steps=8)

    @jax.jit
    def run(key):
        state = init(module.Hyper(learning_rate=1e-3 if name == "td3" else 3e-3, gamma=0.9), key)
        state = jax.lax.scan(lambda state, _: (step(state)[0], None), state, None, updates)[0]
        return training.evaluate(agent, env, (), agent.actor(state.agent), key, num_envs=64, max_steps=2).returns.mean()

    # Without one of the two the mean is 0. TD3's policy saturates early and keeps some of its first mistakes.
    assert float(run(jax.random.key(0))) > (0.3 if name == "td3" else 0.9)

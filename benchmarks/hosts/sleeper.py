"""An environment that sleeps; worker processes import it by its name."""

import time
from typing import Any

import gymnasium
import numpy as np


class Sleeper(gymnasium.Env):
    """Sleeps in each step, which uses no core."""

    observation_space = gymnasium.spaces.Box(-1, 1, (32,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, seconds: float = 0.004):
        self.seconds = seconds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.uniform(-1, 1, 32).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        self.time += 1
        return self.np_random.uniform(-1, 1, 32).astype(np.float32), 1.0, False, self.time >= 100, {}

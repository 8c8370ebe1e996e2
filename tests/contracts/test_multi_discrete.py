"""An action of several choices: PPO acts in it, and every other agent is refused with PPO as the remedy."""

import numpy as np
import pytest

from rlkit import agents
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.spaces import Box, MultiDiscrete
from rlkit.types import ConfigError

OTHERS = [name for name in agents.names() if name != "ppo"]
REFUSED = r"^agent='{}' needs a .*, and this one is MultiDiscrete\(nvec=\({}.*\); use ppo$"
by_name = pytest.mark.parametrize("name", OTHERS)


@by_name
def test_the_agent_names_ppo(name):
    module, obs = agents.get(name), Box(np.full(1, -1.0, np.float32), np.ones(1, np.float32))
    with pytest.raises(ConfigError, match=REFUSED.format(name, "2, 3")):
        module.make(module.Config(), obs, MultiDiscrete((2, 3)))


@by_name
def test_a_run_outside_of_jax_names_ppo(name):
    values = {"agent": name, "env": "host_envs:Masked", "env_kwargs": {"kind": "multi_discrete"}, "num_envs": 1}
    with pytest.raises(ConfigError, match=REFUSED.format(name, "3, 4")):
        make_program(parse(values | {"backend": "serial", "num_steps": 1, "total_steps": 8}))

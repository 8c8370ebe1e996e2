"""Agents that do not plan, in games where one agent moves for both players; a leaf whose name is taken."""

import jax.numpy as jnp
import pytest
from counter_env import Counter

from rlkit import agents
from rlkit.names import GAME_STATE
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.make import make_program
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

SIZES = {"num_envs": 4, "num_steps": 4, "total_steps": 64, "eval_episodes": 0}


@pytest.mark.parametrize("agent", [name for name in agents.supporting(Discrete(3)) if name not in ("alphazero", "bc")])
def test_values_of_the_other_players_turn_have_another_sign(agent):
    with pytest.raises(ConfigError) as error:
        make_program(parse({"agent": agent, "env": "Probe-Nim", **SIZES}))
    assert agent in str(error.value)
    assert "alphazero" in str(error.value)


class Named(Counter):
    """Its observation has a part with the name that the rules of a game have."""

    def observation_space(self, params):
        return Dict({GAME_STATE: super().observation_space(params), "other": Box(0, 1, (1,))})

    def _obs(self, state):
        return {GAME_STATE: super()._obs(state), "other": jnp.zeros(1)}


def test_a_part_that_networks_would_not_have_is_refused():
    with pytest.raises(ConfigError) as error:
        make_program(parse({"agent": "ppo", "env": f"{__name__}:Named", "num_minibatches": 1, **SIZES}))
    assert GAME_STATE in str(error.value)

"""One run over simulated devices: its numbers are those of one device; and settings that do not divide over them."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from mistakes import mistake

from rlkit import envs, training
from rlkit.agents import dqn, ppo, sac
from rlkit.types import ConfigError

SUPPORT = Path(__file__).parents[1] / "support" / "programs"
SEQUENCES = {"recurrent": "gru", "burn_in": 1, "unroll_len": 4}
RUNS, STEPS = "data_parallel_runs.py", "data_parallel_steps.py"
THOROUGH = {STEPS: ("gradient_step_of_dqn",), RUNS: ("whole_players", "whole_pool", "whole_mingru_ppo")}
SLOW = {
    RUNS: (
        *("whole_ppo", "learning", "seeds", "offline", "whole_recurrent_ppo", "whole_pqn", "whole_recurrent_pqn"),
        *("warm_up", "more_learning"),
    ),
    STEPS: (
        *("priorities", "statistics", "keys", "gradient_steps_with_noise", "statistics_of_critics"),
        *("gradient_step_of_sac", "gradient_step_of_td3_bc", "gradient_step_of_r2d2"),
        "gradient_step_of_sac_with_a_memory",
    ),
}
PROGRAMS = [
    pytest.param(file, name, marks=mark)
    for mark, files in ((pytest.mark.thorough, THOROUGH), (pytest.mark.slow, SLOW))
    for file, names in files.items()
    for name in names
]


@pytest.mark.parametrize(("file", "program"), PROGRAMS)
def test_devices_together_compute_what_one_does(file, program):
    command = [sys.executable, str(SUPPORT / file), program]
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "agrees" in done.stdout


def make(module, **settings):
    env, params = envs.make("CartPole-v1")
    spaces = env.observation_space(params), env.action_space(params)
    agent = module.make(module.Config(**settings), *spaces, axis_name="data")
    return agent, training.make(agent, env, params, num_envs=12, num_steps=8)


@pytest.mark.parametrize(
    ("module", "settings", "devices", "message"),
    [
        (ppo, {}, 8, ["num_envs=12 must", "try 8 or 16"]),
        (ppo, {"num_minibatches": 16}, 4, ["num_minibatches=16 must", "24; try"]),
        (ppo, {"num_minibatches": 6, "recurrent": "gru"}, 4, ["num_minibatches=6 must", "3; try 3"]),
        (dqn, {"capacity": 1200, "batch_size": 30}, 4, ["batch_size=30 must", "28 or 32"]),
        (sac, SEQUENCES | {"capacity": 1200, "batch_size": 24}, 4, ["batch_size=24 must", "4 devices", "try 32"]),
    ],
)
def test_a_number_that_does_not_divide_over_the_devices(module, settings, devices, message):
    agent, _ = make(module, **settings)
    agent.check(12, 8)
    agent.check(12, 8, 2)
    with mistake(*message):
        agent.check(12, 8, devices)


def test_an_agent_of_another_axis_or_without_a_buffer_adds_nothing():
    mesh = Mesh(np.array(jax.devices()[:1]), ("run",), axis_types=(AxisType.Auto,))
    with pytest.raises(ConfigError, match="axis_name='run' must be that of the agent, 'data'"):
        training.data_parallel_add(make(dqn, capacity=1200)[0], mesh, "run")
    with pytest.raises(ConfigError, match="not from a dataset; use iql or td3_bc"):
        training.data_parallel_add(make(ppo)[0], mesh, "run")


def test_streams_that_do_not_divide_over_the_devices_are_not_added():
    add = training.data_parallel_add(make(dqn, capacity=1200)[0], AbstractMesh((2,), ("data",)), "data")
    with pytest.raises(ConfigError, match=r"num_envs=3 must be a multiple of the devices .* 2; try 2 or 4"):
        add(None, SimpleNamespace(reward=np.zeros((8, 3))))


def test_an_axis_that_the_mesh_lacks():
    mesh = Mesh(np.array(jax.devices()[:1]), ("run",), axis_types=(AxisType.Auto,))
    with pytest.raises(ConfigError, match="axis_name='data' must be an axis of the mesh, one of run"):
        training.data_parallel(make(ppo)[1], mesh, "data")

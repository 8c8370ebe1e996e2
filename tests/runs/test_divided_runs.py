"""A single run divided over devices: its numbers, checkpoints of any number of devices, and refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY

SUPPORT = Path(__file__).parents[1] / "support"


def process(*words, **variables):
    """A Python process of its own on simulated devices."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "case",
    [
        "refusals",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("ppo", "tqc")),
        pytest.param("dqn", marks=pytest.mark.thorough),
    ],
)
def test_a_run_over_devices(case):
    assert "agrees" in process(SUPPORT / "divided_runs.py", case)


@pytest.mark.slow
def test_the_commands_divide_a_run_and_read_it_on_one_device(tmp_path):
    run, two = tmp_path / "run", {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    checked = process("-m", "rlkit", "check", "dqn/cartpole", "--num_envs", 8, "--devices", "all", **two)
    assert "mesh:           data=2, on each device 4 of 8 environments and" in checked
    process("-m", "rlkit", "train", "ppo/cartpole", *TINY, "--devices", 2, "--out", run, **two)
    one = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    assert "step 64: greedy return" in process("-m", "rlkit", "eval", run, **one)
    assert "step 96" in process("-m", "rlkit", "resume", run, "--devices", 1, "--total_steps", 96, **one)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ppo", "dqn", "sac", "sac-gru"])
def test_a_run_outside_of_jax_over_devices(case):
    assert "agrees" in process(SUPPORT / "divided_hosts.py", case)

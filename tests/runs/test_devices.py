"""Runs spread over devices: the numbers of one device, on any number of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from command_line import TINY, fails
from jax.sharding import PartitionSpec as P

from rlkit import ConfigError, training, use_cpu_cores
from rlkit.runs import devices

PROGRAMS = Path(__file__).parents[1] / "support" / "sharded_runs.py"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        "over_runs",
        pytest.param("policies", marks=pytest.mark.slow),
        pytest.param("dqn", marks=pytest.mark.slow),
        pytest.param("ppo", marks=pytest.mark.slow),
        pytest.param("sac", marks=pytest.mark.slow),
        pytest.param("counts", marks=pytest.mark.slow),
    ],
)
def test_runs_on_several_devices_are_those_on_one(case):
    command = [sys.executable, str(PROGRAMS), case]
    done = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=290, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("num_runs", "available", "expected"), [(10, 2, 2), (10, 8, 5), (10, 4, 4), (3, 2, 2), (1, 8, 1), (8, 8, 8)]
)
def test_runs_are_spread_over_as_few_devices_as_needed(num_runs, available, expected):
    assert training.mesh.num_devices(num_runs, available) == expected


def test_one_run_or_one_device_needs_no_mesh():
    assert devices.mesh_of_runs("auto", 1) is devices.mesh_of_data("auto", 1) is None
    assert devices.mesh_of_runs(1, 10) is devices.mesh_of_data(1, 1) is None
    assert devices.mesh_of_data("all", 10) is None  # of which each has one


def test_functions_over_a_mesh_of_one_device():
    mesh = training.mesh.make(jax.local_devices()[:1])
    assert training.mesh.sharding(mesh).spec == P("run")
    x = jax.numpy.arange(3.0)
    assert training.over_runs(lambda x: 2 * x, mesh)(x).tolist() == [0, 2, 4]


def test_too_many_devices_are_one_line():
    with pytest.raises(ConfigError, match=r"^devices=9999 must be at most \d+, as JAX has started with them; .* lower"):
        devices.mesh_of_runs(9999, 10_000)
    with pytest.raises(ConfigError, match=r"^number=0 must be at least 1; leave it out for \d+, one per core$"):
        use_cpu_cores(0)


def test_cores_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 5}, raising=False)
    monkeypatch.setattr(Path, "read_text", lambda self: "max 100000\n")
    assert devices.cores() == 3
    monkeypatch.setattr(Path, "read_text", lambda self: "200000 100000\n")
    assert devices.cores() == 2


def rlkit_command(*words):
    """A command in a process of its own, on three simulated devices."""
    command = [sys.executable, "-m", "rlkit", *map(str, words)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


def test_the_command_line_makes_cores_devices_before_jax_starts():
    code = "from rlkit.cli.jax_settings import use_cores; use_cores(); import jax; print(jax.device_count())"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == devices.cores()


@pytest.mark.slow
def test_the_command_line_spreads_seeds_over_devices(tmp_path):
    """A run of three devices is gone on with on one."""
    run = tmp_path / "run"
    checked = rlkit_command("check", "ppo/cartpole", "--seeds", 5)
    assert "seeds:          5 from 0, on 3 devices" in checked.stdout
    trained = rlkit_command("train", "ppo/cartpole", *TINY, "--seeds", 3, "--out", run)
    assert trained.returncode == 0, trained.stderr
    assert len(json.loads((run / "eval.json").read_text())["mean_of_seed"]) == 3
    resumed = rlkit_command("resume", run, "--total_steps", 96, "--devices", 1)
    assert resumed.returncode == 0, resumed.stderr
    assert "step 96" in resumed.stdout


def test_devices_that_cannot_be_had_are_one_line(capsys):
    for value in ("none", "0", "1.5", "true"):
        assert fails(capsys, "check", "ppo/cartpole", "--devices", value).endswith(
            "must be auto, all, or a number of devices from 1 to 65536; the default is 'auto'\n"
        )
    message = fails(capsys, "check", "ppo/cartpole", "--devices", "9999")
    assert "devices=9999 must be at most" in message

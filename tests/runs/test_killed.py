"""Trainers that are killed at any moment, in mid-save too, and resumed: the run is as if it had never been killed."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
import yaml
from tiny_runs import without_clock

from rlkit.runs import run_directory
from rlkit.runs.checkpoints import checkpoint

LINES = 75  # of a run, for each kill; every second one is followed by a checkpoint
RUN = {
    "env": "CartPole-v1",
    "num_envs": 4,
    "num_steps": 8,
    "hidden_sizes": [8],
    "normalize_obs": True,
    "eval_episodes": 2,
    "eval_every": 3200,
    "keep_best": True,
    "log_every": 32,
    "checkpoint_every": 64,
    "keep_checkpoints": 2,
    "report": False,
}
BUFFER = {"replay": "prioritized", "n_step": 3, "store_obs_once": True, "capacity": 512, "batch_size": 16}
AGENTS = {
    "ppo": {"num_epochs": 1, "num_minibatches": 2, "normalize_reward": True},
    "dqn": {"learning_starts": 64, "replay_ratio": 0.25, "target_every": 100, **BUFFER},
}


def start(folder, *words):
    """A command in a process of its own; all of one test share their compiled programs."""
    command, environment = [sys.executable, "-m", "rlkit", *map(str, words)], {"RLKIT_CACHE": str(folder / "xla")}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"  # which compiles faster
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def end(process):
    with process:
        _, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors.decode()[-2000:]


def num_lines(run):
    path = run / run_directory.METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill(process, run, lines, delay):
    """Send SIGKILL a moment after a number of metric lines was reached, which may be in mid-save."""
    with process:
        limit = time.monotonic() + 250
        while num_lines(run) < lines and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.001)
        time.sleep(delay)
        process.kill()
        process.communicate()
    assert process.returncode == -9
    assert num_lines(run) >= lines


def result(run):
    """The SHA-256 of the last state, and all that a run measured."""
    last = checkpoint.steps(run)[-1]
    assert checkpoint.find_damage(run / run_directory.CHECKPOINTS / f"{last:012d}") is None
    manifest = json.loads((run / run_directory.CHECKPOINTS / f"{last:012d}" / "manifest.json").read_text())
    return last, manifest["leaves.bin"], without_clock(run), json.loads((run / "eval.json").read_text())


@pytest.mark.parametrize(
    "kills", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(24, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("agent", ["dqn", pytest.param("ppo", marks=pytest.mark.slow)])
@pytest.mark.timeout(1200)
def test_a_killed_trainer_goes_on_as_if_it_had_not_been(agent, kills, tmp_path):
    config, whole, killed = tmp_path / "config.yaml", tmp_path / "whole", tmp_path / "killed"
    config.write_text(yaml.safe_dump(RUN | AGENTS[agent] | {"agent": agent, "total_steps": 32 * LINES * kills}))
    end(start(tmp_path, "train", config, "--out", whole))
    rng, words = random.Random(kills), ("train", config, "--out", killed)
    for moment in sorted(rng.sample(range(1, LINES * kills * 3 // 4), kills)):
        kill(start(tmp_path, *words), killed, moment, rng.uniform(0, 0.02))
        words = ("resume", killed)
    end(start(tmp_path, *words))
    assert result(killed) == result(whole)

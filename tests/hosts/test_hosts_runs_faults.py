"""Whole runs in environments outside of JAX: faults, signals and values that are not finite keep the state."""

import json
import os
import signal
import threading
import time

import pytest
from host_runs import PPO, lines
from mistakes import mistake

from rlkit import runs
from rlkit.hosts import HostError
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.loop import NonFiniteError
from rlkit.runs.programs import environments
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


def test_a_fault_after_the_last_restart_keeps_the_state(tmp_path, monkeypatch, capsys):
    """Every failure is shown and written into the run; a line counts the restarts since the line before."""
    monkeypatch.setattr(environments.validation, "check", lambda *_: [])
    values = PPO | {"env": "host_envs:Breaks", "env_kwargs": {"how": "exit", "length": 1000}, "env_restarts": 3}
    values |= {"num_steps": 2, "total_steps": 400, "log_every": 8}
    with pytest.raises(HostError, match=r"environment \d of worker \d, seed \d+: failed in step: .* 3 restarts"):
        runs.train(values, out=tmp_path / "run")
    rows = lines(tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run")[-1] == rows[-1]["step"]
    counts = [line["env_restarts"] for line in rows]
    assert all(type(count) is int for count in counts)
    assert 0 < sum(counts) <= 3
    shown = capsys.readouterr().err
    faults = [json.loads(line) for line in (tmp_path / "run" / "env_faults.jsonl").read_text().splitlines()]
    assert len(faults) == 4  # and after three restarts, the failure that ended the run
    for fault in faults:
        assert fault["env"] == "host_envs:Breaks"
        assert fault["worker"] == fault["environment"] // 2
        assert fault["stage"] == "in step"
        assert fault["text"] == "the process ended: exit code 3"
        place = f"environment {fault['environment']} of worker {fault['worker']}, seed {fault['seed']}"
        assert f"env='host_envs:Breaks': {place}: failed in step: the process ended: exit code 3\n" in shown
    assert len({(fault["environment"], fault["seed"]) for fault in faults}) == 4  # a restart has another seed
    assert {fault["step"] for fault in faults} <= {0, *(line["step"] for line in rows)}


def test_the_error_for_a_nan_reward_names_its_environment(tmp_path):
    values = PPO | {"env": "host_envs:Wrong", "env_kwargs": {"how": "reward nan"}, "backend": "serial"}
    with mistake("reward of environment 0 of worker 0, seed ", "expected finite numbers, got nan"):
        runs.train(values, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_a_late_nan_is_reported_and_the_state_before_it_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(environments.validation, "check", lambda *_: [])
    values = PPO | {"env": "host_envs:Wrong", "env_kwargs": {"how": "nan"}, "num_steps": 2, "total_steps": 80}
    values |= {"num_envs": 2, "num_minibatches": 1, "log_every": 4, "backend": "serial"}
    place = r"env='host_envs:Wrong': obs\[0\] of environment 0 of worker 0, seed \d+, nan,"
    with pytest.raises(NonFiniteError, match=rf"{place} is not finite after step 8; .* step 4"):
        runs.train(values, out=tmp_path / "run", show=False)
    assert checkpoint.steps(tmp_path / "run")[-1] == 4


@pytest.mark.thorough
def test_ctrl_c_ends_an_evaluation_too(tmp_path, monkeypatch):
    """Slow greedy episodes between two updates are interrupted, and the state is saved."""
    played = environments.play

    def interrupted_soon(*args, **settings):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin.append(time.monotonic())
        return played(*args, **settings)

    begin: list[float] = []
    monkeypatch.setattr(environments, "play", interrupted_soon)
    slow = {"env_kwargs": {"sleep": 0.02}, "num_steps": 2, "eval_every": 8, "eval_episodes": 2000, "log_every": 8}
    trained = runs.train(PPO | slow | {"backend": "serial"}, out=tmp_path / "run", show=False)
    assert time.monotonic() - begin[0] < 10  # of 40 s
    assert trained.signal == signal.SIGINT
    assert "eval_return_mean" not in lines(tmp_path / "run")[-1]
    assert checkpoint.steps(tmp_path / "run")[-1] == lines(tmp_path / "run")[-1]["step"]


@pytest.mark.thorough
@pytest.mark.parametrize("error", [HostError, pytest.param(ConfigError, marks=pytest.mark.slow)])
def test_a_fault_in_an_evaluation_keeps_the_state(tmp_path, monkeypatch, error):
    def broken(*args, **settings):
        raise error("environment 3 failed")

    monkeypatch.setattr(environments, "play", broken)
    often = {"num_steps": 2, "eval_every": 8, "log_every": 8, "backend": "serial"}
    with pytest.raises(error):
        runs.train(PPO | often, out=tmp_path / "run", show=False)
    assert checkpoint.steps(tmp_path / "run")[-1] == lines(tmp_path / "run")[-1]["step"] == 8


def test_a_nan_reward_in_an_evaluation_keeps_the_state(tmp_path, monkeypatch):
    """Episodes have ten steps, of which the first update uses two."""
    monkeypatch.setattr(environments.validation, "check", lambda *_: [])
    values = PPO | {"env": "host_envs:Wrong", "env_kwargs": {"how": "late reward nan"}, "backend": "serial"}
    place = r"env='host_envs:Wrong': reward of environment 0 of worker 0, seed \d+"
    message = place + " in an evaluation: expected finite numbers, got nan; fix"
    with pytest.raises(ConfigError, match=message):
        runs.train(values | {"num_steps": 2, "eval_every": 8, "log_every": 8}, out=tmp_path / "run", show=False)
    assert checkpoint.steps(tmp_path / "run")[-1] == lines(tmp_path / "run")[-1]["step"] == 8

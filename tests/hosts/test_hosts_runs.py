"""Whole runs in environments outside of JAX: files, resume, seeds, overlap."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import host_envs
import jax
import numpy as np
import pytest
from doc_pages import unexplained
from host_runs import DQN, PPO, config, lines

from rlkit import runs
from rlkit.cli import main
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.programs import host_program
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
HERE = Path(host_envs.__file__).parent


def test_ppo_learns_and_writes_a_whole_run(tmp_path):
    trained = runs.train(PPO, out=tmp_path / "run", show=False)
    assert trained.evaluation["mean"] == 1.0
    assert trained.evaluation["episodes"] == 8
    rows = lines(trained.run)
    assert rows[-1]["step"] == 1920
    assert rows[-1]["return_mean"] > 0.9
    for line in rows:
        assert 0 <= line["envs_idle"] <= 1
        assert 0 <= line["learner_idle"] <= 1
        assert unexplained(line) == []
    assert sum(line["episodes"] for line in rows) == 1920  # an episode is one step
    assert checkpoint.steps(trained.run)[-1] == 1920
    assert (trained.run / "curve.png").exists()


@pytest.mark.parametrize("values", [PPO, pytest.param(DQN, marks=pytest.mark.slow)], ids=["ppo", "dqn"])
def test_resume(tmp_path, values):
    """It continues from the checkpoint with new episodes; `module:Class` must be given again."""
    stopped = runs.train(values, lambda line, state: line["step"] >= 512, out=tmp_path / "run", show=False)
    assert lines(stopped.run)[-1]["step"] == 512
    before = jax.tree.map(np.asarray, stopped.state.agent.params)
    with pytest.raises(ConfigError, match="no file may name code to run; add --env host_envs:Target"):
        runs.resume(tmp_path / "run", show=False)
    with pytest.raises(ConfigError, match="must be that of run="):
        runs.resume(tmp_path / "run", env="host_envs:Counter", show=False)
    resumed = runs.resume(tmp_path / "run", env="host_envs:Target", show=False)
    steps = [line["step"] for line in lines(resumed.run)]
    assert steps == sorted(set(steps))
    assert steps[-1] == values["total_steps"]
    after = resumed.state.agent.params
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    assert not all(np.array_equal(a, b) for a, b in pairs)
    more = runs.train(values, lambda line, state: True, out=tmp_path / "more", init_from=resumed.run, show=False)
    assert more.run == tmp_path / "more"


def test_an_off_policy_agent_holds_the_last_step_back(tmp_path):
    """The step is part of the checkpoint; the buffer never joins it to the episodes after a resume."""
    stopped = runs.train(DQN, lambda line, state: True, out=tmp_path / "run", show=False)
    program = host_program.HostProgram(runs.parse(DQN))
    state, _, _ = checkpoint.restore(stopped.run, program.template)
    assert bool(state.envs.there)
    program.advance(state, np.int32(1))
    program.close()
    rollout = program.collector.buffers[-1]  # the rollout of the last update
    row = program.collector.treedef.unflatten([x[0] for x in rollout])[0]
    np.testing.assert_array_equal(row.obs, state.envs.steps.obs)
    assert (row.terminated | row.truncated).all()


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_run(tmp_path):
    """Without overlap, everything but the seconds is equal, whatever the backend."""
    values = PPO | {"total_steps": 256, "overlap": False, "eval_episodes": 1, "num_workers": 1}
    ends = [
        runs.train(values | change, out=tmp_path / str(index), show=False).state
        for index, change in enumerate(({}, {"backend": "serial"}, {"seed": 1}))
    ]
    first, same, other = (jax.tree.leaves(jax.device_get(state.agent.params)) for state in ends)
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("overlap", [pytest.param(False, marks=pytest.mark.slow), True])
def test_parameters_of_the_next_rollout(overlap):
    """With overlap the parameters before the update that runs at the same time, and otherwise those after it."""
    program = host_program.HostProgram(runs.parse(PPO | {"backend": "serial"}))
    program.overlap = overlap  # although the tests have one device for both
    before = program.start()
    advance = program.advance
    collector = program.collector
    calls = []
    act = collector.act

    def spy(actor, *arguments):
        result = act(actor, *arguments)
        calls.append((int(arguments[-1]), jax.device_get(actor.params)))
        return result

    collector.act = spy
    states = [before]
    for _ in range(3):
        states.append(advance(states[-1], np.int32(1)).state)
    program.close()
    used = [params for number, params in calls if number == 0]  # at the first step of each rollout
    expected = [states[0], states[0], states[1], states[2]] if overlap else states[:3]
    assert len(used) == len(expected)
    for params, state in zip(used, expected, strict=True):
        for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(state.agent.params), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_overlap_uses_the_log_probs_of_acting(tmp_path, monkeypatch):
    """With only one device, as in a process where JAX has started, overlap is turned off, with a note."""
    config = runs.parse(PPO | {"backend": "serial", "overlap": True})
    program = host_program.HostProgram(config)
    assert not program.overlap
    assert "jax_num_cpu_devices" in program.note
    assert program.config.agent.old_log_prob == "recompute"
    program.close()
    monkeypatch.setattr(host_program.devices, "acting", lambda learning: (jax.devices()[0], None))
    program = host_program.HostProgram(config)
    program.close()
    assert program.overlap
    assert program.config.agent.old_log_prob == "collected"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("bounds", r"obs of step\[0\]: expected .* got 7.0, in environment 0 of worker 0, seed \d"),
        ("nan", r"got NaN, in environment 0 of worker 0, seed \d"),
    ],
)
def test_values_are_checked_before_training(tmp_path, how, message):
    values = PPO | {"env": "host_envs:Wrong", "env_kwargs": {"how": how}, "backend": "serial"}
    with pytest.raises(ConfigError, match=message):
        runs.train(values, out=tmp_path / "run", show=False)


def test_code_is_given_only_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = config(tmp_path, total_steps=128, backend="serial")
    assert main(["train", str(path)]) == 2
    assert "no file may name code to run; add --env host_envs:Target" in capsys.readouterr().err
    assert main(["train", str(path), "--env", "host_envs:Target", "--out", "run"]) == 0
    assert main(["eval", "run"]) == 2
    assert main(["eval", "run", "--env", "host_envs:Target"]) == 0
    assert json.loads(Path("run/eval.json").read_text())["env"] == "host_envs:Target"
    assert main(["check", str(path), "--env", "gymnasium:CartPole-v1"]) == 0
    assert "gymnasium:CartPole-v1: observations Box" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_with_overlap_ends_soon_and_saved(tmp_path, number):
    """The signal arrives during a rollout of a slow environment, in a process where JAX has a second device."""
    values = {"num_steps": 64, "overlap": True, "env_kwargs": {"sleep": 0.005}, "log_every": 64 * 4}
    path = config(tmp_path, total_steps=10**6, **values)
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); from rlkit.cli import main; sys.exit(main())"
    words = ["train", str(path), "--env", "host_envs:Target", "--out", str(tmp_path / "run")]
    cache = {"RLKIT_CACHE": os.environ["RLKIT_TEST_PROGRAMS"]}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, env=os.environ | cache
    )
    end = time.monotonic() + 100
    path = tmp_path / "run" / "metrics.jsonl"
    while not (path.exists() and path.read_bytes().count(b"\n") >= 2) and time.monotonic() < end:
        time.sleep(0.1)
    begin = time.monotonic()
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert time.monotonic() - begin < 10  # a second where the machine is idle
    stderr = process.stderr.read()
    process.stderr.close()
    assert "stopped at step" in stderr
    assert "overlap is off" not in stderr
    assert lines(tmp_path / "run")[-1]["learner_idle"] > 0  # it waits for the rollout that runs at the same time
    assert checkpoint.steps(tmp_path / "run")[-1] == lines(tmp_path / "run")[-1]["step"]

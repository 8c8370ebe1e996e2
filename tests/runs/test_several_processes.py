"""Processes that train together: the numbers of one process, its files, its resume, and the death of one of them."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import fails
from doc_pages import ROOT, execute
from several_processes import CONFIGS

from rlkit.runs.checkpoints import checkpoint

FAULTY = Path(__file__).parents[1] / "support" / "faulty_processes.py"
PROGRAM = Path(__file__).parents[1] / "support" / "several_processes.py"
TIMES = {"seconds", "steps_per_second", "update_seconds", "envs_idle", "learner_idle"}
pytestmark = pytest.mark.timeout(900)  # several processes share the cores with other tests
LONG = ["--num_envs", "4", "--num_steps", "8", "--total_steps", "1e8", "--log_every", "3200", "--hidden_sizes", "[8]"]
LONG += ["--num_epochs", "1", "--num_minibatches", "1", "--eval_episodes", "2", "--report", "false"]


def start(*words, **options):
    """A Python process of its own, which prints into a pipe."""
    kept = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS" or "device_count" not in value}
    environ = kept | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def end(*processes, seconds=600):
    """The exit codes and outputs of processes."""
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs


def content(run):
    """What a run's files say: its metric lines without times, its checkpoints' bytes, its evaluation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in TIMES & line.keys():
            del line[name]
    leaves = {path.parent.name: path.read_bytes() for path in run.glob("checkpoints/*/leaves.bin")}
    return lines, leaves, json.loads((run / "eval.json").read_text())


@pytest.mark.parametrize(
    ("case", "number"),
    [
        pytest.param("two", 2, marks=pytest.mark.slow),
        pytest.param("hosts", 2, marks=pytest.mark.slow),
        pytest.param("four", 4, marks=pytest.mark.slow),
    ],
)
def test_processes_write_the_run_that_one_process_with_as_many_devices_writes(tmp_path, case, number):
    at = port()
    (*codes,), outputs = end(*(start(PROGRAM, tmp_path / "many", case, number, at, i) for i in range(number)))
    assert codes == [0] * number, outputs[0][-3000:] + outputs[-1][-3000:]
    codes, outputs = end(start(PROGRAM, tmp_path / "one", case, number))
    assert codes == [0], outputs[0][-3000:]
    for name in CONFIGS[case]:
        lines, leaves, evaluation = content(tmp_path / "many" / name)
        expected = content(tmp_path / "one" / name)
        if name == "sac_data":  # sums over four devices have another order between processes
            assert lines[0]["critic_loss"] == pytest.approx(expected[0][0]["critic_loss"], rel=1e-3)
            continue
        assert lines == expected[0], name
        assert leaves.keys() == expected[1].keys()
        assert all(leaves[step] == expected[1][step] for step in leaves), name
        assert evaluation == expected[2], name


@pytest.mark.slow
def test_the_commands_of_the_page_train_and_go_on(tmp_path):
    *_, printed = execute(ROOT / "docs/many-machines.md", tmp_path)
    assert "step 8192: greedy return" in printed


def both(*words, own=({}, {}), **options):
    """A command of two processes that are joined. `own`: other options of each, with `words` to be added."""
    joined = ["--coordinator", f"127.0.0.1:{port()}", "--num-processes", "2", "--process-id"]
    return [
        start("-m", "rlkit", *words, *more.pop("words", ()), *joined, index, **options, **more)
        for index, more in enumerate(map(dict, own))
    ]


def train(out, *words, **options):
    return both("train", "ppo/cartpole", *LONG, *words, "--out", out, **options)


def wait_for_lines(run, number, *processes):
    """Wait until a run that is in training has so many metric lines."""
    deadline = time.monotonic() + 200
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_bytes().count(b"\n") < number:
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), end(*processes)
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("--seeds", 2), ("--env", "gymnasium:CartPole-v1", "--num_workers", 1)], ids=["seeds", "gymnasium"]
)
def test_a_signal_to_one_process_stops_and_saves_the_run_and_one_process_goes_on(tmp_path, words):
    run = tmp_path / "run"
    processes = train(run, *words)
    wait_for_lines(run, 1, *processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, outputs = end(*processes)
    assert codes == [128 + signal.SIGTERM] * 2, outputs
    assert "and saved; continue with: rlkit resume" in outputs[0]
    assert "saved" not in outputs[1]  # the first process speaks for all
    step = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert step > 0
    (code,), (output,) = end(start("-m", "rlkit", "resume", run, "--total_steps", step + 64))
    assert code == 0, output


@pytest.mark.parametrize(
    ("killed", "words"),
    [
        pytest.param(0, ("--seeds", 2), marks=pytest.mark.thorough),
        pytest.param(1, ("--seeds", 2), marks=pytest.mark.slow),
        pytest.param(1, ("--env", "gymnasium:CartPole-v1", "--num_workers", 1), marks=pytest.mark.slow),
    ],
    ids=["first", "second", "gymnasium"],
)
def test_the_survivor_of_a_killed_process_ends_with_a_line(tmp_path, killed, words):
    """It names the lost process, the last checkpoint and the command to go on; JAX's messages are in a file."""
    run = tmp_path / "run"
    processes = train(run, *words, "--checkpoint_every", 3200)
    wait_for_lines(run, 1, *processes)
    processes[killed].kill()
    codes, outputs = end(*processes, seconds=100)
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 1, outputs
    step = max(int(path.name) for path in (run / "checkpoints").iterdir())
    *rest, line = outputs[1 - killed].splitlines()
    assert line.startswith(f"rlkit: process {killed} of this run is gone")
    assert f"step {step};" in line
    assert f"rlkit resume {run} " in line
    assert not [text for text in rest if "Traceback" in text or "***" in text or ".cc:" in text], outputs
    assert "Gloo" in (log := (run / f"process-{1 - killed}.log").read_text()) or "coordination" in log
    assert str(run / f"process-{1 - killed}.log") in line
    (code,), (output,) = end(start("-m", "rlkit", "resume", run, "--total_steps", step + 64))
    assert code == 0, output


def refused(processes):
    """The line with which both processes end, before they compile or write a run."""
    codes, outputs = end(*processes, seconds=100)
    assert codes == [2, 2], outputs
    lines = {output.splitlines()[-1] for output in outputs}
    assert len(lines) == 1, outputs
    assert "Traceback" not in outputs[0] + outputs[1]
    return lines.pop()


@pytest.mark.thorough
def test_processes_with_another_seed_are_refused(tmp_path):
    words = ["train", "ppo/cartpole", *LONG, "--out", tmp_path / "run"]
    line = refused(both(*words, own=({"words": ["--seed", 0]}, {"words": ["--seed", 7]})))
    assert "seed=0 of process 0" in line
    assert "process 1 has 7" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_another_file_of_own_code_are_refused(tmp_path):
    run, words = tmp_path / "run", ["train", "ppo/cartpole", *LONG, "--out", tmp_path / "run"]
    own = []
    for number in (0, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "mine.py").write_text(f"import optax\n\ndef make(rate): return optax.adam(rate, b1=0.{number})\n")
        own.append({"cwd": folder})
    assert "optimizer='mine:make' must be the same code" in refused(both(*words, "--optimizer", "mine:make", own=own))
    assert not run.exists()


@pytest.mark.slow
def test_a_resume_with_other_flags_in_one_process_is_refused(tmp_path):
    run = tmp_path / "run"
    words = ["--num_envs", 4, "--num_steps", 8, "--total_steps", 64, "--eval_episodes", 0, "--out", run]
    (code,), (output,) = end(start("-m", "rlkit", "train", "ppo/cartpole", *words))
    assert code == 0, output
    own = ({"words": ["--total_steps", 128]}, {"words": ["--total_steps", 192]})
    assert "total_steps=128 of process 0" in refused(both("resume", run, own=own))
    own = ({}, {"words": ["--num_envs", "none"]})
    assert "num_envs='none' must be" in refused(both("resume", run, own=own))


def pair(run, *fault):
    """Two processes of `faulty_processes.py`."""
    at = port()
    return [start(FAULTY, run, at, index, *fault) for index in (0, 1)]


@pytest.mark.thorough
def test_a_run_of_two_processes_goes_on_from_any_moment_of_a_save(tmp_path):
    whole = tmp_path / "run"
    codes, outputs = end(*pair(whole, "copy"))
    assert codes == [0, 0], outputs
    left = sorted(tmp_path.glob("run-*"), key=lambda path: int(path.name.partition("-")[2]))
    newest = [checkpoint.steps(copy)[-1] for copy in left]
    assert len(newest) > 8
    assert newest == sorted(newest)
    assert set(newest) == {640, 1280}
    for copy in left:
        for folder in (copy / "checkpoints").glob("[0-9]*"):
            assert checkpoint.find_damage(folder) is None
    copy = left[newest.index(1280) - 1]  # whose save was cut
    codes, outputs = end(*both("resume", copy))
    assert codes == [0, 0], outputs
    assert content(copy) == content(whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 12, 25])
def test_a_full_disk_of_the_first_process_ends_both_with_a_line(tmp_path, number):
    codes, outputs = end(*pair(tmp_path / "run", "full", number), seconds=100)
    assert all(code not in (0, None) for code in codes), outputs
    assert "No space left on device" in outputs[0], outputs[0]
    assert "Traceback" not in outputs[0] + outputs[1]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.slow)])
def test_two_processes_that_are_killed_go_on_as_if_they_had_not_been(tmp_path, kills):
    whole, killed, rng = tmp_path / "whole", tmp_path / "killed", random.Random(kills)
    lines = 40  # of a run, for each kill; every second one is followed by a checkpoint
    config = ["train", "ppo/cartpole", "--num_envs", 4, "--num_steps", 8, "--seeds", 2]
    config += ["--total_steps", 64 * lines * kills, "--log_every", 64, "--checkpoint_every", 128]
    config += ["--eval_episodes", 2, "--report", "false", "--out"]
    codes, outputs = end(*both(*config, whole))
    assert codes == [0, 0], outputs
    words = [*config, killed]
    for moment in sorted(rng.sample(range(1, lines * kills * 3 // 4), kills)):
        processes = both(*words)
        wait_for_lines(killed, moment, *processes)
        time.sleep(rng.uniform(0, 0.05))
        for process in rng.sample(processes, 2):
            process.kill()
        codes, outputs = end(*processes)
        assert codes == [-signal.SIGKILL] * 2, outputs
        words = ["resume", killed]
    codes, outputs = end(*both(*words))
    assert codes == [0, 0], outputs
    assert content(killed) == content(whole)


@pytest.mark.slow
def test_an_environment_that_fails_in_one_process_ends_all_of_them_with_its_error(tmp_path):
    """One of four environments raises; the other process waits for no exchange, and both save the same state."""
    run = tmp_path / "run"
    words = ["--env", "host_envs:Breaks", "--env_kwargs", f"{{once: {tmp_path / 'broken'}}}", "--env_check", "false"]
    words += ["--env_restarts", 0, "--num_workers", 1]
    codes, outputs = end(*train(run, *words, cwd=PROGRAM.parent))
    assert codes == [1, 1], outputs
    lines = [[line for line in output.splitlines() if "broken on purpose" in line][-1] for output in outputs]
    assert lines[0] == lines[1]
    assert lines[0].startswith("rlkit: env='host_envs:Breaks': environment ")
    assert [int(path.name) for path in (run / "checkpoints").iterdir()] == [0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-processes", "2"], "--num-processes needs --coordinator ADDRESS:PORT"),
        (["--coordinator", "127.0.0.1:77"], "needs --num-processes and --process-id"),
        (["--coordinator", "host", "--num-processes", "2", "--process-id", "0"], "must be ADDRESS:PORT or auto"),
        (["--coordinator", "h:1", "--num-processes", "2", "--process-id", "2"], "--process-id=2 must be at least 0"),
        (["--coordinator", "h:1", "--num-processes", "x", "--process-id", "2"], "--num-processes='x' must be a whole"),
        (["--coordinator", "auto", "--process-id", "2"], "--process-id must be left out with --coordinator auto"),
    ],
)
def test_flags_that_do_not_join_processes_are_refused(capsys, words, message):
    assert message in fails(capsys, "train", "ppo/cartpole", *words)

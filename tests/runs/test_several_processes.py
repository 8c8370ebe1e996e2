"""Processes that train together: the numbers of one process, its files, its resume, and the death of one of them."""

import json
import os
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

PROGRAM = Path(__file__).parents[1] / "support" / "several_processes.py"
LONG = ["--env", "CartPole-v1", "--num_envs", "4", "--num_steps", "8", "--total_steps", "1e8", "--log_every", "3200"]


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


def end(*processes, seconds=280):
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
        del line["seconds"], line["steps_per_second"]
    leaves = {path.parent.name: path.read_bytes() for path in run.glob("checkpoints/*/leaves.bin")}
    return lines, leaves, json.loads((run / "eval.json").read_text())


@pytest.mark.parametrize(
    "number", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.slow)]
)
def test_processes_write_the_run_that_one_process_with_as_many_devices_writes(tmp_path, number):
    at = port()
    (*codes,), outputs = end(*(start(PROGRAM, tmp_path / "many", number, at, i) for i in range(number)))
    assert codes == [0] * number, outputs[0][-3000:] + outputs[-1][-3000:]
    codes, outputs = end(start(PROGRAM, tmp_path / "one", number))
    assert codes == [0], outputs[0][-3000:]
    for name in CONFIGS[number]:
        lines, leaves, evaluation = content(tmp_path / "many" / name)
        expected = content(tmp_path / "one" / name)
        if name == "sac_data":  # sums over four devices have another order between processes
            assert lines[0]["critic_loss"] == pytest.approx(expected[0][0]["critic_loss"], rel=1e-3)
            continue
        assert lines == expected[0], name
        assert leaves.keys() == expected[1].keys()
        assert all(leaves[step] == expected[1][step] for step in leaves), name
        assert evaluation == expected[2], name


@pytest.mark.thorough
def test_the_commands_of_the_page_train_and_go_on(tmp_path):
    *_, printed = execute(ROOT / "docs/many-machines.md", tmp_path)
    assert "step 8192: greedy return" in printed


def train(out, at, index, *words):
    joined = ["--coordinator", f"127.0.0.1:{at}", "--num-processes", "2", "--process-id", index]
    return start("-m", "rlkit", "train", "ppo/cartpole", *LONG, *words, "--out", out, *joined)


def wait_for_line(run, *processes):
    """Wait until a run that is in training has a metric line."""
    deadline = time.monotonic() + 200
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_bytes():
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes), end(*processes)
        time.sleep(0.2)


def test_a_signal_to_one_process_stops_and_saves_the_run_and_one_process_goes_on(tmp_path):
    run, at = tmp_path / "run", port()
    both = [train(run, at, index, "--seeds", 2) for index in (0, 1)]
    wait_for_line(run, *both)
    both[1].send_signal(signal.SIGTERM)
    codes, outputs = end(*both)
    assert codes == [128 + signal.SIGTERM] * 2, outputs
    assert "and saved; continue with: rlkit resume" in outputs[0]
    assert "saved" not in outputs[1]  # the first process speaks for all
    step = max(int(path.name) for path in (run / "checkpoints").iterdir())
    assert step > 0
    (code,), (output,) = end(start("-m", "rlkit", "resume", run, "--total_steps", step + 64))
    assert code == 0, output


@pytest.mark.thorough
@pytest.mark.parametrize("killed", [0, 1])
def test_the_death_of_one_process_ends_the_others_and_is_named(tmp_path, killed):
    run, at = tmp_path / "run", port()
    both = [train(run, at, index, "--seeds", 2, "--checkpoint_every", 3200) for index in (0, 1)]
    wait_for_line(run, *both)
    both[killed].kill()
    codes, outputs = end(*both, seconds=100)
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] not in (0, -signal.SIGKILL)
    # JAX ends a process at once that cannot reach the first one, and else after some seconds; it names the dead one.
    assert ("leader task" if killed == 0 else "rlkit: another process of this run") in outputs[1 - killed], outputs
    step = max(int(path.name) for path in (run / "checkpoints").iterdir())
    (code,), (output,) = end(start("-m", "rlkit", "resume", run, "--total_steps", step + 64))
    assert code == 0, output


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

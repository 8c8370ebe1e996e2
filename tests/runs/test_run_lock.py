"""The lock of a run's folder: it dies with its process, and a file system may have none."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest

from rlkit.runs import run_directory
from rlkit.types import ConfigError

LOCKER = """
import os, sys, time
from pathlib import Path
from rlkit.runs import run_directory
run = Path(sys.argv[1])
with run_directory.locked(run):
    if not os.fork():
        time.sleep(60)
        os._exit(0)
with run_directory.locked(run):  # whatever was forked meanwhile
    worker = __import__("subprocess").Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.thorough
def test_a_lock_dies_with_its_process_and_not_with_the_children(tmp_path):
    command = [sys.executable, "-c", LOCKER, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match="another process trains it"), run_directory.locked(tmp_path):
            pass
        process.kill()
        process.wait()
        with run_directory.locked(tmp_path):
            assert (tmp_path / run_directory.LOCK).exists()
        assert not (tmp_path / run_directory.LOCK).exists()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


@pytest.mark.thorough
def test_where_there_are_no_locks_runs_go_on(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with run_directory.locked(tmp_path):
        pass
    (tmp_path / run_directory.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"must have a writable \.lock"), run_directory.locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_the_probe_of_another_process_does_not_look_like_training(tmp_path, monkeypatch):
    probe = os.open(tmp_path / run_directory.LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(probe, fcntl.LOCK_SH)
    assert not run_directory.is_locked(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(probe))
    with run_directory.locked(tmp_path):
        assert run_directory.is_locked(tmp_path)
    assert not run_directory.is_locked(tmp_path)

"""Worker processes and their supervisor: every wait has a timeout, and no worker outlives its pool.

Workers are new interpreters, never forks: a fork of a process in which JAX has started its threads can hang for ever.
Each worker leads a process group of its own, so that Ctrl-C reaches the pool alone, and so that the processes that an
environment starts can be ended together with it.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlkit.hosts.orphans import OrphanKiller
from rlkit.hosts.worker import group, messages, shared_arrays
from rlkit.hosts.worker.group import Facts, Fault
from rlkit.hosts.worker.recipe import Recipe

_POLL_SECONDS = 0.1  # between two checks of workers that have not answered
_START_SECONDS = 60.0  # for a process to start and to import its environment
_CODE = "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from rlkit.hosts.worker.main import main; main()"


class Interrupted(Exception):
    """Raised while waiting for workers, after the function passed to `watch` has returned true."""


class _Process:
    """One worker process and the pipes to it."""

    def __init__(self, command: list[str], shared_fd: int):
        read_command, self.commands = os.pipe()
        self.answers, write_answer = os.pipe()
        descriptors = [str(read_command), str(write_answer), str(shared_fd)]
        self.sequence = 0
        try:
            self.popen = subprocess.Popen(
                [*command[:3], *descriptors, *command[3:]],
                stdin=subprocess.DEVNULL,
                pass_fds=(read_command, write_answer, shared_fd),
                process_group=0,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},  # an environment in JAX holds no accelerator
            )
        finally:
            os.close(read_command)
            os.close(write_answer)

    def send(self, operation: int, value: Any = None) -> None:
        """Send a command."""
        self.sequence += 1
        messages.send(self.commands, self.sequence, value, operation=operation)

    def receive(self) -> Any:
        """Wait for the answer to the last command; answers to earlier ones are dropped."""
        while True:
            sequence, _, value = messages.receive(self.answers)
            if sequence == self.sequence:
                return value

    def close_commands(self) -> None:
        """Close the pipe of commands, which lets the worker exit."""
        if self.commands >= 0:
            os.close(self.commands)
            self.commands = -1

    def has_exited(self) -> bool:
        """Return true where the process has exited, without reaping it.

        A KeyboardInterrupt in the middle of `Popen.poll` would leave its lock held for ever, so that nothing could wait
        for the process any more. This function takes no lock.
        """
        if self.popen.returncode is not None or not hasattr(os, "waitid"):
            return self.popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> int | None:
        """Kill the process and its process group; return the exit code, where it had exited by itself."""
        self.close_commands()
        code = self.popen.poll()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        if self.answers >= 0:
            os.close(self.answers)
            self.answers = -1
        return code


class Processes:
    """The workers of a pool as processes.

    Args:
      recipe: of the environments.
      num_envs: N, which the workers divide as `group.shares` does.
      workers: their number.
      timeout: seconds, the longest duration of one call of an environment's code.
    """

    def __init__(self, recipe: Recipe, num_envs: int, workers: int, timeout: float):
        self.recipe, self.num_envs, self.timeout = recipe, num_envs, timeout
        self.shares = shares = group.shares(num_envs, workers)  # until the number of players is known
        self.interrupted: Callable[[], bool] = lambda: False
        pages = -(-len(shares) * messages.STATUS_SIZE * 8 // mmap.ALLOCATIONGRANULARITY)
        self.status_bytes = pages * mmap.ALLOCATIONGRANULARITY
        self.shared_fd = _anonymous_file()  # the status of all workers, followed by the shared arrays
        os.ftruncate(self.shared_fd, self.status_bytes)
        self.status = memoryview(mmap.mmap(self.shared_fd, self.status_bytes)).cast("q")
        # The kernel kills a worker when the thread that started it ends, so one lasting thread starts all of them.
        self.starter = ThreadPoolExecutor(1, "rlkit-hosts")
        self.processes: list[_Process | None] = [None] * len(shares)
        self.orphans = OrphanKiller()
        self.layout: shared_arrays.Layout | None = None
        self.poll = select.poll()
        self.by_fd: dict[int, int] = {}

    def start(self, workers: Iterable[int]) -> tuple[dict[int, Facts], list[tuple[int, Fault]]]:
        """Start workers; return the facts about the environments of each, and the faults of those that failed."""
        workers = list(workers)
        for worker in workers:
            slot = worker * messages.STATUS_SIZE
            self.status[slot], self.status[slot + 1] = group.STARTING, self.shares[worker][0]
            process = self.starter.submit(self._launch, worker).result()
            self.processes[worker] = process
            self.orphans.add(process.popen.pid)
            self.by_fd[process.answers] = worker
            self.poll.register(process.answers, select.POLLIN)
        value = self.recipe, self.num_envs, len(self.shares), self.status_bytes
        values = dict.fromkeys(workers, value)
        answers, faults = self._request(workers, messages.ATTACH, values)
        facts = {worker: value for worker, value in answers.items() if not isinstance(value, Fault)}
        if self.layout is not None:
            faults += self.attach(self.layout, facts)
        return facts, faults

    def keep(self, shares: list[tuple[int, int]]) -> None:
        """Set the environments (first, count) of each worker, and end the workers that have none."""
        self.shares = shares
        for worker in range(len(shares), len(self.processes)):
            self._remove(worker)

    def _launch(self, worker: int) -> _Process:
        arguments = [str(worker), str(os.getpid()), json.dumps([path or os.getcwd() for path in sys.path])]
        return _Process([sys.executable, "-c", _CODE, *arguments], self.shared_fd)

    def attach(self, layout: shared_arrays.Layout, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Allocate the arrays of a layout, where that has not been done, and share them with workers."""
        workers = list(workers)
        if self.layout is None:
            os.ftruncate(self.shared_fd, self.status_bytes + layout.num_bytes)
        self.layout = layout
        return self._request(workers, messages.ATTACH, dict.fromkeys(workers, layout))[1]

    def views(self) -> shared_arrays.Views:
        """Return the shared arrays."""
        assert self.layout is not None
        buffer = mmap.mmap(self.shared_fd, self.layout.num_bytes, offset=self.status_bytes)
        return shared_arrays.make_views(self.layout, buffer)

    def run(self, operation: int, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Let workers reset or step their environments; return the faults of those that failed, which are removed."""
        return self._request(list(workers), operation, {})[1]

    def _request(
        self, workers: list[int], operation: int, values: dict[int, Any]
    ) -> tuple[dict[int, Any], list[tuple[int, Fault]]]:
        answers: dict[int, Any] = {}
        faults: list[tuple[int, Fault]] = []
        pending = set(workers)
        for worker in workers:
            process = self.processes[worker]
            assert process is not None
            with contextlib.suppress(messages.Closed):  # noticed below, as its pipe of answers is closed too
                process.send(operation, values.get(worker))
        progress: dict[int, tuple[int, float]] = {}  # number of calls, and the time at which it last changed
        next_check = time.monotonic() + _POLL_SECONDS
        while pending:
            for fd, _ in self.poll.poll(_POLL_SECONDS * 1000):
                worker = self.by_fd[fd]
                process = self.processes[worker]
                assert process is not None
                try:
                    answer = answers[worker] = process.receive()
                    fault = answer if isinstance(answer, Fault) else None
                except messages.Closed:
                    fault = self._exit_fault(worker)
                if fault is not None:
                    faults.append((worker, fault))
                    self._remove(worker)
                pending.discard(worker)
            if pending and (now := time.monotonic()) >= next_check:
                next_check = now + _POLL_SECONDS
                if self.interrupted():
                    raise Interrupted
                for worker in [worker for worker in pending if self._timed_out(worker, progress, now)]:
                    faults.append((worker, self._timeout_fault(worker)))
                    self._remove(worker)
                    pending.discard(worker)
        return answers, faults

    def _status(self, worker: int) -> tuple[int, int, int]:
        """Return a worker's stage, the index of the environment, and the number of calls that it has begun."""
        slot = worker * messages.STATUS_SIZE
        return self.status[slot], self.status[slot + 1], self.status[slot + 2]

    def _timed_out(self, worker: int, progress: dict[int, tuple[int, float]], now: float) -> bool:
        """Return true where a worker's call takes longer than the timeout, or its process has exited silently."""
        stage, _, calls = self._status(worker)
        previous_calls, since = progress.get(worker, (-1, now))
        if calls != previous_calls:
            progress[worker] = (calls, now)
            return False
        process = self.processes[worker]
        assert process is not None
        if process.has_exited():  # a process that it started still holds the pipe open
            return True
        return now - since > self._limit(stage)

    def _limit(self, stage: int) -> float:
        """Return the timeout of a stage, in seconds."""
        return _START_SECONDS if stage in (group.STARTING, group.IMPORTING) else self.timeout

    def _timeout_fault(self, worker: int) -> Fault:
        process = self.processes[worker]
        assert process is not None
        if process.has_exited():
            return self._exit_fault(worker)
        stage, env, _ = self._status(worker)
        text = f"no answer for {self._limit(stage):g} s; set a longer env_timeout for a slow environment"
        return Fault("timeout", env, stage, text)

    def _exit_fault(self, worker: int) -> Fault:
        process = self.processes[worker]
        assert process is not None
        stage, env, _ = self._status(worker)
        try:
            code = process.popen.wait(1.0)  # the pipe closes a moment before the process has exited
        except subprocess.TimeoutExpired:
            code = None
        cause = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return Fault("died", env, stage, f"the process ended: {cause}")

    def _remove(self, worker: int) -> None:
        process = self.processes[worker]
        if process is not None:
            self.poll.unregister(process.answers)
            del self.by_fd[process.answers]
            process.kill()
            self.orphans.discard(process.popen.pid)
            self.processes[worker] = None

    def close(self, grace: float = 0.5) -> None:
        """End all workers; those that do not exit within `grace` seconds are killed."""
        for process in self.processes:
            if process is not None:
                process.close_commands()
        end = time.monotonic() + grace
        for process in self.processes:
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.popen.wait(max(0.0, end - time.monotonic()))
        for worker in range(len(self.processes)):
            self._remove(worker)
        self.orphans.close()
        self.starter.shutdown(wait=False)
        if self.shared_fd >= 0:
            os.close(self.shared_fd)
            self.shared_fd = -1


def _anonymous_file() -> int:
    """Open a file in memory for processes to share; it is freed with the last of them, also after a kill -9."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlkit-hosts")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

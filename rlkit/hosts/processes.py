"""Worker processes and the supervisor that keeps them: finite waits, no orphans, a fresh one where one failed.

Workers are new interpreters, never forks: a fork of a process in which JAX has started its threads can hang for ever.
Each is a process group of its own, so that Ctrl-C reaches the pool alone, and what an environment starts ends with it.
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

from rlkit.hosts.guard import Guard
from rlkit.hosts.worker import block, group, wire
from rlkit.hosts.worker.contract import Tree
from rlkit.hosts.worker.group import Fault
from rlkit.hosts.worker.making import Recipe

_LOOK = 0.1  # seconds between two looks at workers that have not answered
_START = 60.0  # seconds for a process to start and to import its environment
_CODE = "import sys, json; sys.path[:] = json.loads(sys.argv.pop()); from rlkit.hosts.worker.main import main; main()"


class Interrupted(Exception):
    """Whoever uses the pool has said that it need not go on."""


class _Process:
    """One worker process and the pipes to it."""

    def __init__(self, command: list[str], memory: int):
        read_command, self.commands = os.pipe()
        self.answers, write_answer = os.pipe()
        ours = [str(read_command), str(write_answer), str(memory)]
        self.sequence = 0
        try:
            self.popen = subprocess.Popen(
                [*command[:3], *ours, *command[3:]],
                stdin=subprocess.DEVNULL,
                pass_fds=(read_command, write_answer, memory),
                process_group=0,
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
        finally:
            os.close(read_command)
            os.close(write_answer)

    def send(self, operation: int, value: Any = None) -> None:
        self.sequence += 1
        wire.send(self.commands, self.sequence, operation, value)

    def answer(self) -> Any:
        """The answer to the last command; answers to earlier ones are dropped."""
        while True:
            sequence, value = wire.answered(self.answers)
            if sequence == self.sequence:
                return value

    def hang_up(self) -> None:
        if self.commands >= 0:
            os.close(self.commands)
            self.commands = -1

    def ended(self) -> bool:
        """Whether the process is gone; it is not reaped.

        For where a KeyboardInterrupt may come at any time: in the midst of `Popen.poll` it leaves a lock held for ever,
        and nothing can wait for the process any more.
        """
        if self.popen.returncode is not None or not hasattr(os, "waitid"):
            return self.popen.poll() is not None
        try:
            return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> int | None:
        """End the process and what it started; its exit code, where it had ended by itself."""
        self.hang_up()
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
      shares: (first, count) of the environments of each worker.
      timeout: seconds that each call of an environment's code may take.
    """

    def __init__(self, recipe: Recipe, shares: list[tuple[int, int]], timeout: float):
        self.recipe, self.shares, self.timeout = recipe, shares, timeout
        self.interrupted: Callable[[], bool] = lambda: False
        self.board_bytes = -(-len(shares) * wire.SLOTS * 8 // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.memory = _anonymous_file()
        os.ftruncate(self.memory, self.board_bytes)
        self.board = memoryview(mmap.mmap(self.memory, self.board_bytes)).cast("q")
        # Workers are told by the kernel when the thread that started them ends, so one thread starts all of them.
        self.starter = ThreadPoolExecutor(1, "rlkit-hosts")
        self.processes: list[_Process | None] = [None] * len(shares)
        self.guard = Guard()
        self.plan: block.Layout | None = None
        self.poll = select.poll()
        self.by_fd: dict[int, int] = {}

    def start(self, workers: Iterable[int]) -> tuple[dict[int, tuple[Tree, Tree]], list[tuple[int, Fault]]]:
        """Start workers: the spaces that each found, and the faults of those that did not come up."""
        workers = list(workers)
        for worker in workers:
            slot = worker * wire.SLOTS
            self.board[slot], self.board[slot + 1] = group.STARTING, self.shares[worker][0]
            process = self.starter.submit(self._launch, worker).result()
            self.processes[worker] = process
            self.guard.add(process.popen.pid)
            self.by_fd[process.answers] = worker
            self.poll.register(process.answers, select.POLLIN)
        values = {worker: (self.recipe, *self.shares[worker], self.board_bytes) for worker in workers}
        answers, faults = self._ask(workers, wire.ATTACH, values)
        found = {worker: value for worker, value in answers.items() if not isinstance(value, Fault)}
        if self.plan is not None:
            faults += self.attach(self.plan, found)
        return found, faults

    def _launch(self, worker: int) -> _Process:
        words = [str(worker), str(os.getpid()), json.dumps([path or os.getcwd() for path in sys.path])]
        return _Process([sys.executable, "-c", _CODE, *words], self.memory)

    def attach(self, plan: block.Layout, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Share the arrays of a layout with workers."""
        workers = list(workers)
        if self.plan is None:
            os.ftruncate(self.memory, self.board_bytes + plan.size)
        self.plan = plan
        return self._ask(workers, wire.ATTACH, dict.fromkeys(workers, plan))[1]

    def views(self) -> block.Views:
        assert self.plan is not None
        return block.views(self.plan, mmap.mmap(self.memory, self.plan.size, offset=self.board_bytes))

    def run(self, operation: int, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Let workers reset or step their environments; the faults of those that failed, which are gone then."""
        return self._ask(list(workers), operation, {})[1]

    def _ask(
        self, workers: list[int], operation: int, values: dict[int, Any]
    ) -> tuple[dict[int, Any], list[tuple[int, Fault]]]:
        answers: dict[int, Any] = {}
        faults: list[tuple[int, Fault]] = []
        pending = set(workers)
        for worker in workers:
            process = self.processes[worker]
            assert process is not None
            with contextlib.suppress(wire.Closed):  # the end of its answers says so, too
                process.send(operation, values.get(worker))
        seen: dict[int, tuple[int, float]] = {}
        look = time.monotonic() + _LOOK
        while pending:
            for fd, _ in self.poll.poll(_LOOK * 1000):
                worker = self.by_fd[fd]
                process = self.processes[worker]
                assert process is not None
                try:
                    answer = answers[worker] = process.answer()
                    fault = answer if isinstance(answer, Fault) else None
                except wire.Closed:
                    fault = self._died(worker)
                if fault is not None:
                    faults.append((worker, fault))
                    self._remove(worker)
                pending.discard(worker)
            if pending and (now := time.monotonic()) >= look:
                look = now + _LOOK
                if self.interrupted():
                    raise Interrupted
                for worker in [worker for worker in pending if self._silent(worker, seen, now)]:
                    faults.append((worker, self._hangs(worker)))
                    self._remove(worker)
                    pending.discard(worker)
        return answers, faults

    def _at(self, worker: int) -> tuple[int, int, int]:
        """What a worker is doing, in which environment, and how many calls it has begun."""
        slot = worker * wire.SLOTS
        return self.board[slot], self.board[slot + 1], self.board[slot + 2]

    def _silent(self, worker: int, seen: dict[int, tuple[int, float]], now: float) -> bool:
        """Whether the call that a worker is in takes longer than it may, or its process has ended without a word."""
        stage, _, calls = self._at(worker)
        before, since = seen.get(worker, (-1, now))
        if calls != before:
            seen[worker] = (calls, now)
            return False
        process = self.processes[worker]
        assert process is not None
        if process.ended():  # something that it started still holds the pipe
            return True
        return now - since > (_START if stage in (group.STARTING, group.IMPORTING) else self.timeout)

    def _hangs(self, worker: int) -> Fault:
        process = self.processes[worker]
        assert process is not None
        if process.ended():
            return self._died(worker)
        stage, env, _ = self._at(worker)
        seconds = _START if stage in (group.STARTING, group.IMPORTING) else self.timeout
        return Fault("silent", env, stage, f"no answer for {seconds:g} s; a slow one needs a longer env_timeout")

    def _died(self, worker: int) -> Fault:
        process = self.processes[worker]
        assert process is not None
        stage, env, _ = self._at(worker)
        try:
            code = process.popen.wait(1.0)  # its pipe closes a moment before it is gone
        except subprocess.TimeoutExpired:
            code = None
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return Fault("died", env, stage, f"the process ended: {how}")

    def _remove(self, worker: int) -> None:
        process = self.processes[worker]
        if process is not None:
            self.poll.unregister(process.answers)
            del self.by_fd[process.answers]
            process.kill()
            self.guard.discard(process.popen.pid)
            self.processes[worker] = None

    def close(self, grace: float = 0.5) -> None:
        """End all workers: those that do not leave by themselves in `grace` seconds are killed."""
        for process in self.processes:
            if process is not None:
                process.hang_up()
        end = time.monotonic() + grace
        for process in self.processes:
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.popen.wait(max(0.0, end - time.monotonic()))
        for worker in range(len(self.processes)):
            self._remove(worker)
        self.guard.close()
        self.starter.shutdown(wait=False)
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


def _anonymous_file() -> int:
    """Memory that processes share and that is gone with the last of them, also after a kill -9."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlkit-hosts")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

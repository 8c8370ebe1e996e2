"""Workers in this process: threads (for environments that wait or release the interpreter lock), or serial calls."""

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from rlkit.hosts.processes import Interrupted
from rlkit.hosts.worker import group, messages, shared_arrays
from rlkit.hosts.worker.contract import SpaceTree
from rlkit.hosts.worker.group import CancelToken, Failed, Fault, Group
from rlkit.hosts.worker.recipe import Recipe, constructor

_POLL_SECONDS = 0.1  # between two checks of threads that have not answered


class _Serial:
    """A worker that runs each function at once, in the caller's thread."""

    def call(self, function: Callable[[], Any]) -> None:
        self.answer = _call(function)

    def wait(self, seconds: float) -> bool:
        return True

    def close(self) -> None: ...


class _ThreadWorker:
    """A worker that runs functions one after another in a thread of its own."""

    def __init__(self, number: int):
        self.work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.done = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=f"rlkit-host-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (function := self.work.get()) is not None:
            self.answer = _call(function)
            self.done.release()

    def call(self, function: Callable[[], Any]) -> None:
        self.work.put(function)

    def wait(self, seconds: float) -> bool:
        return self.done.acquire(timeout=seconds)

    def close(self) -> None:
        self.work.put(None)


def _call(function: Callable[[], Any]) -> Any:
    """Return the result of a function, or the Fault that it raised."""
    try:
        return function()
    except Failed as failed:
        return failed.fault


class Local:
    """The workers of a pool in this process, with the interface of `Processes`.

    A thread whose environment hangs is abandoned after the timeout. Without threads, nothing can detect a hang.
    """

    def __init__(self, recipe: Recipe, shares: list[tuple[int, int]], timeout: float, *, threads: bool):
        self.recipe, self.shares, self.timeout, self.threads = recipe, shares, timeout, threads
        self.interrupted: Callable[[], bool] = lambda: False
        self.groups: list[Group | None] = [None] * len(shares)
        self.callers: list[_Serial | _ThreadWorker | None] = [None] * len(shares)
        self.tokens = [CancelToken() for _ in shares]
        self.status = [(group.STARTING, first, 0) for first, _ in shares]
        self.buffer: bytearray | None = None
        self.layout: shared_arrays.Layout | None = None

    def start(self, workers: Iterable[int]) -> tuple[dict[int, tuple[SpaceTree, SpaceTree]], list[tuple[int, Fault]]]:
        """Make the environments of workers; return the spaces of each, and the faults of those that failed."""

        def make(worker: int) -> tuple[SpaceTree, SpaceTree]:
            (first, count), token = self.shares[worker], self.tokens[worker]
            try:
                make_env = constructor(self.recipe)
            except Exception as error:
                raise Failed(group.fault(error, first, group.MAKING)) from error

            def report(stage: int, env: int) -> None:
                self.status[worker] = (stage, env, self.status[worker][2] + 1)

            envs = Group(make_env, first, count, report, token)
            self.groups[worker] = envs
            if self.layout is not None:
                envs.attach(self.views())
            return envs.obs, envs.action

        workers = list(workers)
        for worker in workers:
            if self.callers[worker] is None:
                self.callers[worker] = _ThreadWorker(worker) if self.threads else _Serial()
        return self._request(workers, make)

    def attach(self, layout: shared_arrays.Layout, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Allocate the arrays of a layout, where that has not been done, and share them with workers."""
        if self.buffer is None:
            self.layout, self.buffer = layout, bytearray(layout.num_bytes)
        return self._request(list(workers), lambda worker: self._group(worker).attach(self.views()))[1]

    def views(self) -> shared_arrays.Views:
        """Return the shared arrays."""
        assert self.layout is not None
        return shared_arrays.make_views(self.layout, self.buffer)

    def run(self, operation: int, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Let workers reset or step their environments; return the faults of those that failed, which are removed."""

        def execute(worker: int) -> None:
            envs = self._group(worker)
            try:
                envs.step() if operation == messages.STEP else envs.reset()
            finally:
                if envs.token.cancelled:
                    envs.close()

        return self._request(list(workers), execute)[1]

    def _group(self, worker: int) -> Group:
        envs = self.groups[worker]
        assert envs is not None
        return envs

    def _request(
        self, workers: list[int], function: Callable[[int], Any]
    ) -> tuple[dict[int, Any], list[tuple[int, Fault]]]:
        answers: dict[int, Any] = {}
        faults: list[tuple[int, Fault]] = []
        for worker in workers:
            caller = self.callers[worker]
            assert caller is not None
            caller.call(lambda worker=worker: function(worker))
        for worker in workers:
            caller = self.callers[worker]
            assert caller is not None
            answer = self._wait(worker, caller)
            if isinstance(answer, Fault):
                faults.append((worker, answer))
                self._remove(worker, hangs=answer.kind == "timeout")
            else:
                answers[worker] = answer
        return answers, faults

    def _wait(self, worker: int, caller: _Serial | _ThreadWorker) -> Any:
        previous_calls, since = -1, time.monotonic()
        while not caller.wait(_POLL_SECONDS):
            stage, env, calls = self.status[worker]
            if calls != previous_calls:
                previous_calls, since = calls, time.monotonic()
            if self.interrupted():
                raise Interrupted
            if time.monotonic() - since > self.timeout:
                text = f"no answer for {self.timeout:g} s; set a longer env_timeout for a slow environment"
                return Fault("timeout", env, stage, text)
        return caller.answer

    def _remove(self, worker: int, *, hangs: bool) -> None:
        envs, self.groups[worker] = self.groups[worker], None
        caller = self.callers[worker]
        if hangs and caller is not None:
            # Should the call return later, it must not write: the thread that replaces it uses the same rows.
            self.tokens[worker].cancelled = True
            self.tokens[worker] = CancelToken()
            caller.close()
            self.callers[worker] = None
        elif envs is not None:
            envs.close()

    def close(self) -> None:
        """Close the environments, each in the thread that has stepped it."""
        for envs, caller in zip(self.groups, self.callers, strict=True):
            if caller is not None:
                if envs is not None:
                    caller.call(envs.close)
                    caller.wait(1.0)
                caller.close()
        self.groups, self.callers = [None] * len(self.groups), [None] * len(self.callers)

"""Workers in this process: threads, for environments that wait or that let go of Python's lock; or none at all."""

import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from rlkit.hosts.processes import Interrupted
from rlkit.hosts.worker import block, group, making, wire
from rlkit.hosts.worker.contract import Tree
from rlkit.hosts.worker.group import Failed, Fault, Group, Ticket
from rlkit.hosts.worker.making import Recipe

_LOOK = 0.1  # seconds between two looks at threads that have not answered


class _Caller:
    """Runs a function at once: the worker that is nobody else."""

    def call(self, function: Callable[[], Any]) -> None:
        self.answer = _failed_or(function)

    def wait(self, seconds: float) -> bool:
        return True

    def close(self) -> None: ...


class _Thread:
    """Runs one function after another in a thread of its own."""

    def __init__(self, number: int):
        self.work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.done = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=f"rlkit-host-{number}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (function := self.work.get()) is not None:
            self.answer = _failed_or(function)
            self.done.release()

    def call(self, function: Callable[[], Any]) -> None:
        self.work.put(function)

    def wait(self, seconds: float) -> bool:
        return self.done.acquire(timeout=seconds)

    def close(self) -> None:
        self.work.put(None)


def _failed_or(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Failed as failed:
        return failed.fault


class Local:
    """The workers of a pool in this process, with the interface of `Processes`.

    An environment that hangs is noticed in a thread, which is then left behind; nothing notices it where there is none.
    """

    def __init__(self, recipe: Recipe, shares: list[tuple[int, int]], timeout: float, *, threads: bool):
        self.recipe, self.shares, self.timeout, self.threads = recipe, shares, timeout, threads
        self.interrupted: Callable[[], bool] = lambda: False
        self.groups: list[Group | None] = [None] * len(shares)
        self.callers: list[_Caller | _Thread | None] = [None] * len(shares)
        self.tickets = [Ticket() for _ in shares]
        self.board = [(group.STARTING, first, 0) for first, _ in shares]
        self.memory: bytearray | None = None
        self.plan: block.Layout | None = None

    def start(self, workers: Iterable[int]) -> tuple[dict[int, tuple[Tree, Tree]], list[tuple[int, Fault]]]:
        """Make the environments of workers: the spaces that each found, and what failed."""

        def make(worker: int) -> tuple[Tree, Tree]:
            (first, count), ticket = self.shares[worker], self.tickets[worker]
            try:
                maker = making.maker(self.recipe)
            except Exception as error:
                raise Failed(group.fault(error, first, group.MAKING)) from error

            def note(stage: int, env: int) -> None:
                self.board[worker] = (stage, env, self.board[worker][2] + 1)

            made = Group(maker, first, count, note, ticket)
            self.groups[worker] = made
            if self.plan is not None:
                made.attach(self.views())
            return made.obs, made.action

        workers = list(workers)
        for worker in workers:
            if self.callers[worker] is None:
                self.callers[worker] = _Thread(worker) if self.threads else _Caller()
        return self._ask(workers, make)

    def attach(self, plan: block.Layout, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Share the arrays of a layout with workers."""
        if self.memory is None:
            self.plan, self.memory = plan, bytearray(plan.size)
        return self._ask(list(workers), lambda worker: self._group(worker).attach(self.views()))[1]

    def views(self) -> block.Views:
        assert self.plan is not None
        return block.views(self.plan, self.memory)

    def run(self, operation: int, workers: Iterable[int]) -> list[tuple[int, Fault]]:
        """Let workers reset or step their environments; the faults of those that failed, which are gone then."""

        def do(worker: int) -> None:
            made = self._group(worker)
            try:
                made.step() if operation == wire.STEP else made.reset()
            finally:
                if made.ticket.abandoned:
                    made.close()

        return self._ask(list(workers), do)[1]

    def _group(self, worker: int) -> Group:
        found = self.groups[worker]
        assert found is not None
        return found

    def _ask(
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
                self._remove(worker, hangs=answer.kind == "silent")
            else:
                answers[worker] = answer
        return answers, faults

    def _wait(self, worker: int, caller: _Caller | _Thread) -> Any:
        calls, since = -1, time.monotonic()
        while not caller.wait(_LOOK):
            stage, env, now = self.board[worker]
            if now != calls:
                calls, since = now, time.monotonic()
            if self.interrupted():
                raise Interrupted
            if time.monotonic() - since > self.timeout:
                return Fault(
                    "silent", env, stage, f"no answer for {self.timeout:g} s; a slow one needs a longer env_timeout"
                )
        return caller.answer

    def _remove(self, worker: int, *, hangs: bool) -> None:
        made, self.groups[worker] = self.groups[worker], None
        caller = self.callers[worker]
        if hangs and caller is not None:
            self.tickets[worker].abandoned = True  # should it wake up, it must not touch what others have by then
            self.tickets[worker] = Ticket()
            caller.close()
            self.callers[worker] = None
        elif made is not None:
            made.close()

    def close(self) -> None:
        """Close the environments, each where it has been stepped."""
        for made, caller in zip(self.groups, self.callers, strict=True):
            if caller is not None:
                if made is not None:
                    caller.call(made.close)
                    caller.wait(1.0)
                caller.close()
        self.groups, self.callers = [None] * len(self.groups), [None] * len(self.callers)

"""The end of a process whose run has lost another one: a line that names it, and JAX's messages in a file of the run.

JAX aborts a process as soon as its service finds another one dead, with a C++ stack on the error output; an exchange
that fails before that raises an exception. Both end here. The C++ side writes to descriptor 2, which is the file;
Python's `sys.stderr` keeps the output of before.
"""

import ctypes
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

_EXCHANGE = re.compile(
    r"gloo|nccl|coordination|distributed service|socket closed|connection (closed|reset|refused)", re.IGNORECASE
)
_NAMED = (r"\btask[:/ ]+(\d+)\b", r"stopped sending heartbeats\):\s*(\d+)\b")  # in the messages of JAX's service
_LEADER = re.compile(r"leader task|failed to send rpc to coordination service", re.IGNORECASE)

_watch: "_Watch | None" = None


class _Watch:
    """The error output, the log and the handler of this process; its arguments are those of `watch`."""

    def __init__(self, index: int | None, number: int | None, address: str | None, seconds: float):
        self.index, self.number, self.address, self.seconds = index, number, address, seconds
        self.run: Path | None = None
        self.code: int | None = None  # with which this process ends, once that is known
        self.ending = threading.Lock()
        sys.stderr.flush()
        self.error_output = os.dup(2)
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        descriptor, name = tempfile.mkstemp(prefix="rlkit-process-", suffix=".log")
        self.log = Path(name)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        self.handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborted)  # kept, as C holds its address alone
        self._handle(ctypes.cast(self.handler, ctypes.c_void_p).value)

    def _handle(self, handler: int | None) -> None:
        """Set the C handler of SIGABRT: Python's own handlers would run after the abort."""
        libc = ctypes.CDLL(None)
        libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        libc.signal(signal.SIGABRT, handler)

    def _aborted(self, number: int) -> None:
        """End this process, which JAX has aborted; an abort that has another reason goes on."""
        if self.code is not None:  # it has ended, and JAX alone still waits for the others
            os._exit(self.code)
        text = self._text()
        if not _EXCHANGE.search(text):
            os.write(self.error_output, text.encode(errors="backslashreplace"))
            self._handle(None)
            return
        self.end(text)

    def end(self, text: str | None) -> None:
        """Write the line on the lost process, and end this one at once: JAX would wait for the lost one, and abort.

        Args:
          text: JAX's messages where it has aborted; None after an exchange that has failed.
        """
        if not self.ending.acquire(blocking=False):
            time.sleep(2 * self.seconds)
        gone = self._gone(text)
        if gone is None and text is None:
            self.ending.release()
            time.sleep(self.seconds + 5)  # in which JAX finds out, and aborts
            self.ending.acquire()
        os.write(self.error_output, f"{self._line(gone)}\n".encode(errors="backslashreplace"))
        if self.index == 0 and self.number != 2:
            time.sleep(1)  # for its service to name the lost process to the others, before it ends as well
        os._exit(1)

    def _gone(self, text: str | None) -> int | None:
        """The number of the lost process, if it is known."""
        if self.number == 2 and self.index is not None:
            return 1 - self.index
        if self.index != 0 and (_LEADER.search(text or "") or not self._coordinator_answers()):
            return 0
        found = [int(number) for pattern in _NAMED for number in re.findall(pattern, text or "", re.IGNORECASE)]
        return next((number for number in found if number != self.index), None)

    def _coordinator_answers(self) -> bool:
        """False where nothing listens at the coordinator's address."""
        if self.address is None:
            return True
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        except OSError:
            return False
        return True

    def _line(self, gone: int | None) -> str:
        """The line on a lost process."""
        who = "another process" if gone is None else f"process {gone}"
        start, log = "\r\n" if os.isatty(self.error_output) else "", shlex.quote(str(self.log))
        line = f"{start}rlkit: {who} of this run is gone; "
        if self.run is None:
            return f"{line}the run had not begun: start all processes again; JAX's messages are in {log}"
        from rlkit.runs.checkpoints import checkpoint

        steps = checkpoint.steps(self.run) if self.run.is_dir() else []
        saved = f"the last checkpoint is of step {steps[-1]}; " if steps else ""
        return (
            f"{line}{saved}continue with: rlkit resume {shlex.quote(str(self.run))} (in one process, or in each one "
            f"with its --coordinator flags); JAX's messages are in {log}"
        )

    def _text(self) -> str:
        """The log, or its end."""
        with suppress(OSError):
            return self.log.read_bytes()[-(1 << 20) :].decode(errors="replace")
        return ""

    def move(self, run: Path) -> None:
        """Move the log into a run; it stays where it is without the run's folder, on a machine with other disks."""
        self.run = run
        name = f"process-{self.index}.log" if self.index is not None else self.log.name.removeprefix("rlkit-")
        with suppress(OSError):
            descriptor = os.open(run / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
            os.write(descriptor, self.log.read_bytes())
            os.dup2(descriptor, 2)
            os.close(descriptor)
            self.log.unlink()
            self.log = run / name

    def close(self) -> None:
        """Give the error output back, and delete an empty log."""
        os.dup2(self.error_output, 2)
        self._handle(None)
        text = self._text()
        if self.run is None:
            os.write(self.error_output, text.encode(errors="backslashreplace"))
        if self.run is None or not text:
            self.log.unlink(missing_ok=True)


def watch(index: int | None, number: int | None, address: str | None, seconds: float) -> None:
    """Prepare this process, which is about to join others, for the loss of one of them.

    Args:
      index, number: of this process, and of all; None where JAX finds them.
      address: ADDRESS:PORT of the coordinator; None where JAX finds it.
      seconds: without a sign of life, after which JAX names a dead process.
    """
    global _watch
    _watch = _Watch(index, number, address, seconds)


def in_run(run: Path) -> None:
    """Put the messages of JAX into a run, which has begun."""
    if _watch is not None:
        _watch.move(run)


def end_if_lost(error: Exception) -> None:
    """End this process with a line where an exchange with others has failed; return after any other error."""
    jax: Any = sys.modules.get("jax")
    if _watch is None or not isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):
        return
    if _EXCHANGE.search(str(error)):
        with open(2, "w", closefd=False) as log:
            traceback.print_exception(error, file=log)
        sys.stdout.flush()
        _watch.end(None)


def leave(code: int, *, together: bool = True) -> None:
    """Note with which exit code this process ends, and wait for the others where they end as well."""
    global _watch
    if _watch is None:
        return
    sys.stdout.flush()  # as an abort by JAX would lose it
    _watch.code = code
    if together:
        import jax

        with suppress(RuntimeError):  # others have ended before
            jax.distributed.shutdown()
        _watch.close()
        _watch = None

"""A process that outlives this one by a moment, to end what the environments of dead workers have started.

The kernel ends a worker with its pool, but not what its environment started, a game engine say. Each worker is a
process group of its own, so the guard can: it is told the groups, and reads from a pipe that closes with this process.
A pool that is closed says so: a child that was forked meanwhile may hold the pipe open.
"""

import contextlib
import os
import subprocess
import sys

_CODE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
groups = set()
for line in sys.stdin:
    group = int(line)
    if not group:
        break
    groups.add(group) if group > 0 else groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""

_END = 5.0  # seconds for the guard to leave when told


class Guard:
    """Knows the process groups of a pool's workers. It starts with the first of them."""

    def __init__(self):
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        if self.process is None:
            command = [sys.executable, "-I", "-S", "-c", _CODE]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0)
        self._tell(group)

    def discard(self, group: int) -> None:
        """Forget a group that has ended: its number may become another's."""
        self._tell(-group)

    def _tell(self, number: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.process.stdin.fileno(), b"%d\n" % number)

    def close(self) -> None:
        """End the guard, and every group that it still knows."""
        if self.process is not None and self.process.stdin is not None:
            self._tell(0)
            self.process.stdin.close()
            try:
                self.process.wait(_END)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

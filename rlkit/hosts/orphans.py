"""A helper process that kills what environments have started, once this process has ended.

The kernel ends a worker together with its pool, but not the processes that its environment started (a game engine, for
example). Each worker leads a process group of its own, and the helper receives the numbers of these groups over a pipe.
When the pipe closes, this process has ended, and the helper kills the groups. A pool that is closed in the ordinary way
sends 0 as well, because a child that was forked in the meantime may hold the pipe open.
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

_EXIT_SECONDS = 5.0  # for the helper to exit after 0 was sent


class OrphanKiller:
    """The helper process of one pool; it is started when the first group is added."""

    def __init__(self):
        self.process: subprocess.Popen[bytes] | None = None

    def add(self, group: int) -> None:
        """Register a process group."""
        if self.process is None:
            command = [sys.executable, "-I", "-S", "-c", _CODE]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, process_group=0)
        self._send(group)

    def discard(self, group: int) -> None:
        """Remove a group that has ended: the system may reuse its number."""
        self._send(-group)

    def _send(self, number: int) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.process.stdin.fileno(), b"%d\n" % number)

    def close(self) -> None:
        """End the helper and every group that is still registered."""
        if self.process is not None and self.process.stdin is not None:
            self._send(0)
            self.process.stdin.close()
            try:
                self.process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

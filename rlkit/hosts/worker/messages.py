"""Messages between a pool and a worker process, over pipes; arrays are shared and not sent.

A command is (sequence number, operation), and an answer repeats the sequence number, so that a late answer is never
mistaken for the answer to a later command. Further values are pickled: both ends run the same user's code.
"""

import os
import pickle
import struct
from typing import Any

RESET, STEP, ATTACH = range(1, 4)
_HEADER = struct.Struct("<qq")  # sequence number; operation and length of the value
STATUS_SIZE = 8  # int64 of each worker in the shared status: stage, environment, number of calls; the rest is padding


class Closed(Exception):
    """Raised where the other end of a pipe is closed."""


def send(fd: int, sequence: int, value: Any = None, *, operation: int = 0) -> None:
    """Send a command, or without an operation an answer, with a value where it has one."""
    payload = pickle.dumps(value) if value is not None else b""
    _write(fd, _HEADER.pack(sequence, operation | len(payload) << 8) + payload)


def receive(fd: int) -> tuple[int, int, Any]:
    """Wait for the next message; return its sequence number, operation and value."""
    sequence, word = _HEADER.unpack(_read(fd, _HEADER.size))
    length = word >> 8
    return sequence, word & 0xFF, pickle.loads(_read(fd, length)) if length else None


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    while len(data) < size:
        more = os.read(fd, size - len(data)) if data else b""
        if not more:
            raise Closed
        data += more
    return data


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        raise Closed from None

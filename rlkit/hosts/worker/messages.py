"""Messages between a pool and a worker process, over pipes; arrays are shared and not sent.

A command is (sequence number, operation), and an answer repeats the sequence number, so that a late answer is never
mistaken for the answer to a later command. Further values are pickled: both ends run the same user's code.
"""

import os
import pickle
import struct
from typing import Any

RESET, STEP, ATTACH = range(1, 4)
_COMMAND, _ANSWER = struct.Struct("<qq"), struct.Struct("<qq")
STATUS_SIZE = 8  # int64 of each worker in the shared status: stage, environment, number of calls; the rest is padding


class Closed(Exception):
    """Raised where the other end of a pipe is closed."""


def send_command(fd: int, sequence: int, operation: int, value: Any = None) -> None:
    """Send a command, with a value where the operation has one."""
    payload = pickle.dumps(value) if value is not None else b""
    _write(fd, _COMMAND.pack(sequence, operation if not payload else operation | len(payload) << 8) + payload)


def receive_command(fd: int) -> tuple[int, int, Any]:
    """Wait for the next command; return its sequence number, operation and value."""
    sequence, word = _COMMAND.unpack(_read(fd, _COMMAND.size))
    length = word >> 8
    return sequence, word & 0xFF, pickle.loads(_read(fd, length)) if length else None


def send_answer(fd: int, sequence: int, value: Any = None) -> None:
    """Send the answer to the command of that sequence number."""
    payload = pickle.dumps(value) if value is not None else b""
    _write(fd, _ANSWER.pack(sequence, len(payload)) + payload)


def receive_answer(fd: int) -> tuple[int, Any]:
    """Wait for the next answer; return its sequence number and value."""
    sequence, length = _ANSWER.unpack(_read(fd, _ANSWER.size))
    return sequence, pickle.loads(_read(fd, length)) if length else None


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

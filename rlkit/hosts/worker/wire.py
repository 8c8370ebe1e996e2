"""What a pool and a worker process say to each other, beside the arrays: small messages over pipes.

A command is (sequence number, operation); an answer repeats the number, so that an answer that comes too late is never
taken for that to a later command. Whatever is longer than that is pickled: both ends are the same user's code.
"""

import os
import pickle
import struct
from typing import Any

RESET, STEP, ATTACH = range(1, 4)
_COMMAND, _ANSWER = struct.Struct("<qq"), struct.Struct("<qq")
SLOTS = 8  # int64 of a worker on the board: stage, environment, count of calls


class Closed(Exception):
    """The other end is gone."""


def send(fd: int, sequence: int, operation: int, value: Any = None) -> None:
    """A command, with a value where the operation takes one."""
    payload = pickle.dumps(value) if value is not None else b""
    _write(fd, _COMMAND.pack(sequence, operation if not payload else operation | len(payload) << 8) + payload)


def receive(fd: int) -> tuple[int, int, Any]:
    """The next command: sequence number, operation, value."""
    sequence, word = _COMMAND.unpack(_read(fd, _COMMAND.size))
    length = word >> 8
    return sequence, word & 0xFF, pickle.loads(_read(fd, length)) if length else None


def answer(fd: int, sequence: int, value: Any = None) -> None:
    """The answer to the command of that number."""
    payload = pickle.dumps(value) if value is not None else b""
    _write(fd, _ANSWER.pack(sequence, len(payload)) + payload)


def answered(fd: int) -> tuple[int, Any]:
    """The next answer: sequence number, value."""
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

"""A worker process: some environments, stepped when the pool says so, until the pool is gone."""

import mmap
import os
import signal
import sys
import threading
import time
import traceback

from rlkit.hosts.worker import block, group, making, wire
from rlkit.hosts.worker.group import Failed, Fault, Group

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the pool on the file descriptors that the command line names: commands, answers, memory."""
    commands, answers, memory, number, parent = (int(word) for word in sys.argv[1:6])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pool's to act on
    making.only_cpu()
    for fd in (commands, answers, memory):
        os.set_inheritable(fd, False)  # an environment's own children must not keep them open
    _die_with(parent)
    try:
        _serve(commands, answers, memory, number)
    except wire.Closed:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # what an environment left behind, threads above all, must not keep the process


def _die_with(parent: int) -> None:
    """End when the parent ends, whatever this process is doing then."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(0, signal.SIGKILL)

    if os.getppid() != parent:
        os._exit(0)
    threading.Thread(target=watch, daemon=True).start()


def _serve(commands: int, answers: int, memory: int, number: int) -> None:
    sequence, _, (recipe, first, count, board_bytes) = wire.receive(commands)
    board = memoryview(mmap.mmap(memory, board_bytes)).cast("q")[number * wire.SLOTS : (number + 1) * wire.SLOTS]
    calls = 0

    def note(stage: int, env: int) -> None:
        nonlocal calls
        calls += 1
        board[0], board[1], board[2] = stage, env, calls

    note(group.IMPORTING, first)
    try:
        make = making.maker(recipe)
    except Exception as error:
        wire.answer(answers, sequence, group.fault(error, first, group.MAKING))
        return
    try:
        envs = Group(make, first, count, note)
    except Failed as failed:
        wire.answer(answers, sequence, failed.fault)
        return
    wire.answer(answers, sequence, (envs.obs, envs.action))
    try:
        while True:
            note(group.READY, first)
            sequence, operation, value = wire.receive(commands)
            wire.answer(answers, sequence, _do(envs, operation, value, memory, board_bytes))
    finally:
        envs.close()


def _do(envs: Group, operation: int, value: object, memory: int, board_bytes: int) -> Fault | None:
    try:
        if operation == wire.STEP:
            envs.step()
        elif operation == wire.RESET:
            envs.reset(seed_globals=True)
        elif isinstance(value, block.Layout):
            envs.attach(block.views(value, mmap.mmap(memory, value.size, offset=board_bytes)))
    except Failed as failed:
        return failed.fault
    return None


if __name__ == "__main__":
    main()

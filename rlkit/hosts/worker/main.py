"""The main program of a worker process: it steps its environments on the pool's commands until the pool ends."""

import mmap
import os
import signal
import sys
import threading
import time
import traceback

from rlkit.hosts.worker import group, messages, recipe, shared_arrays
from rlkit.hosts.worker.group import Failed, Fault, Group

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the pool on the file descriptors given on the command line: commands, answers, shared memory."""
    commands, answers, shared, number, parent = (int(argument) for argument in sys.argv[1:6])
    for name in ("SIGINT", "SIGHUP"):  # both reach every process of a terminal, and the pool's process handles them
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    for fd in (commands, answers, shared):
        os.set_inheritable(fd, False)  # child processes of an environment must not keep them open
    _die_with(parent)
    try:
        _serve(commands, answers, shared, number)
    except messages.Closed:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads that an environment has left running must not keep the process alive


def _die_with(parent: int) -> None:
    """End this process when the parent ends, even in the middle of a step."""
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


def _serve(commands: int, answers: int, shared: int, number: int) -> None:
    sequence, _, (env_recipe, num_envs, workers, status_bytes) = messages.receive(commands)
    start = number * messages.STATUS_SIZE
    status = memoryview(mmap.mmap(shared, status_bytes)).cast("q")[start : start + messages.STATUS_SIZE]
    calls = 0

    def report(stage: int, env: int) -> None:
        nonlocal calls
        calls += 1
        status[0], status[1], status[2] = stage, env, calls

    first = num_envs * number // workers  # of environments of one player
    report(group.IMPORTING, first)
    try:
        envs = Group(recipe.constructor(env_recipe), num_envs, workers, number, report)
    except Exception as error:
        fault = error.fault if isinstance(error, Failed) else group.fault(error, first, group.MAKING)
        messages.send(answers, sequence, fault)
        return
    messages.send(answers, sequence, envs.facts)
    first = envs.first
    try:
        while True:
            report(group.READY, first)
            sequence, operation, value = messages.receive(commands)
            messages.send(answers, sequence, _execute(envs, operation, value, shared, status_bytes))
    finally:
        envs.close()


def _execute(envs: Group, operation: int, value: object, shared: int, status_bytes: int) -> Fault | None:
    try:
        if operation == messages.STEP:
            envs.step()
        elif operation == messages.RESET:
            envs.reset(seed_globals=True)
        elif isinstance(value, shared_arrays.Layout):
            envs.attach(shared_arrays.make_views(value, mmap.mmap(shared, value.num_bytes, offset=status_bytes)))
    except Failed as failed:
        return failed.fault
    return None


if __name__ == "__main__":
    main()

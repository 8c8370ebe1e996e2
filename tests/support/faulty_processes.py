"""One of two processes that train together, with faults in the first one's files: `FOLDER PORT INDEX FAULT [NUMBER]`.

The fault `copy` copies the run before each change of the disk, from its second checkpoint on; `full` has the disk full
from the change of that number on. Without a fault, it is `none`.
"""

import errno
import os
import shutil
import sys
from pathlib import Path

from rlkit.cli import main
from rlkit.runs import files

RUN = ["--seeds", 2, "--num_envs", 4, "--num_steps", 8, "--hidden_sizes", [8], "--total_steps", 1280]
SAVES = ["--log_every", 320, "--checkpoint_every", 640, "--eval_episodes", 2, "--report", "false"]


def copies(run: Path):
    """Copy a run's folder before each change of the disk after its first checkpoint, to run-0, run-1 and so on."""
    number = 0

    def copy(name: str, path: Path) -> None:
        nonlocal number
        if (run / "checkpoints" / f"{640:012d}").exists():
            shutil.copytree(run, run.with_name(f"{run.name}-{number}"))
            number += 1

    return copy


def full(least: int):
    """Fail each change of the disk from the one with the number `least` on."""
    number = 0

    def fail(name: str, path: Path) -> None:
        nonlocal number
        number += 1
        if number >= least:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    return fail


def train(run: Path, port: str, index: str, fault: str, number: int = 0) -> int:
    """Train as the command does, with a fault in the first process."""
    if index == "0" and fault != "none":
        files.before_operation = copies(run) if fault == "copy" else full(number)
    joined = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", 2, "--process-id", index]
    return main(["train", "ppo/cartpole", *map(str, [*RUN, *SAVES, "--out", run, *joined])])


if __name__ == "__main__":
    folder, port, index, fault, *number = sys.argv[1:]
    sys.exit(train(Path(folder), port, index, fault, *map(int, number)))

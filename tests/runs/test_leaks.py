"""Nothing piles up in a long run: arrays, open files and threads are as many after many metric lines as after few."""

import gc
import os
import threading

import jax
import pytest
from host_runs import DQN
from tiny_runs import SMALL

from rlkit.runs import loop

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("compiled_once")]
OFTEN = {"eval_every": 64, "checkpoint_every": 64, "keep_checkpoints": 2, "report": False}
RUNS = {
    "jax": SMALL | OFTEN | {"log_every": 32, "total_steps": 32 * 20},
    "processes": DQN | OFTEN | {"log_every": 32, "total_steps": 32 * 20, "backend": "process", "num_workers": 2},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_holds_no_more_after_many_lines_than_after_few(name, tmp_path):
    """Each line counted comes after an evaluation and a checkpoint; all programs are compiled by then."""
    counts = {"arrays": [], "files": [], "threads": []}

    def count(line, state):
        if line["step"] >= 32 * 8 and line["step"] % 64 == 0:
            gc.collect()
            counts["arrays"].append(len(jax.live_arrays()))
            counts["files"].append(len(os.listdir("/proc/self/fd")))
            counts["threads"].append(threading.active_count())

    loop.train(RUNS[name], count, out=tmp_path / "run", show=False)
    for what, numbers in counts.items():
        assert len(numbers) == 7
        assert len(set(numbers)) == 1, f"{what}: {numbers}"

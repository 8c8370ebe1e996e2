"""Programs with a pool of environments, each run by another process."""

import subprocess
import sys
from pathlib import Path

import host_envs


def script(code):
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(Path(host_envs.__file__).parent)!r})\n{code}"],
        stdout=subprocess.PIPE,
        text=True,
    )


POOL = """
import signal, time, numpy as np
from rlkit import hosts
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in a background job
pool = hosts.make("host_envs:Breaks", num_envs=2, num_workers=2, how={how!r}, timeout=600)
pool.reset()
print(*(p.popen.pid for p in pool.workers.processes), flush=True)
"""
STEP = "for _ in range(9): pool.step(np.zeros(2, np.int32))\n"

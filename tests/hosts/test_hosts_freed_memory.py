"""A process with environments outside of JAX keeps what it frees, so that each call of a program finds its memory."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from rlkit.hosts import devices

devices.keep_freed_memory()
for _ in range(3):
    np.ones(2**26, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    np.ones(2**26, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> int:
    """Pages of 4 KiB that the system made for four arrays of 64 MiB, one after another."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    own["NUMPY_MADVISE_HUGEPAGE"] = "0"
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True, timeout=120)
    return int(result.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_is_kept():
    assert faults() < 2**26 // 4096  # fewer than those of one array


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_a_setting_of_the_user_stays():
    assert faults(MALLOC_MMAP_THRESHOLD_="131072") >= 4 * 2**26 // 4096

"""rlkit.hosts.cores: which threads are held where, and for how long."""

import os
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from rlkit.hosts import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells threads where to run")
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
several = pytest.mark.skipif(len(CORES) < 2, reason="there is one core")


@pytest.fixture
def threads(monkeypatch):
    """The numbers of as many waiting threads as there are cores, which are taken for XLA's."""
    end, started = threading.Event(), threading.Barrier(len(CORES) + 1)

    def wait():
        started.wait(timeout=10)
        end.wait(timeout=60)

    waiting = [threading.Thread(target=wait) for _ in CORES]
    for thread in waiting:
        thread.start()
    started.wait(timeout=10)
    numbers = tuple(thread.native_id for thread in waiting)
    monkeypatch.setattr(cores, "_threads", lambda: numbers)
    yield numbers
    end.set()
    for thread in waiting:
        thread.join(timeout=10)


def held(threads) -> list[set[int]]:
    return [os.sched_getaffinity(thread) for thread in threads]


@several
def test_each_thread_has_a_core_of_its_own_and_then_what_it_had(threads):
    first = {min(CORES)}
    os.sched_setaffinity(threads[-1], first)
    before = held(threads)
    with cores.one_each():
        assert sorted(map(sorted, held(threads))) == [[core] for core in sorted(CORES)]
    assert held(threads) == before == [CORES] * (len(CORES) - 1) + [first]


@several
def test_an_error_within_lets_them_go(threads):
    with pytest.raises(ValueError, match="within"), cores.one_each():
        raise ValueError("within")
    assert held(threads) == [CORES] * len(CORES)


@several
def test_fewer_threads_than_cores_are_left_alone(threads, monkeypatch):
    monkeypatch.setattr(cores, "_threads", lambda: threads[1:])
    with cores.one_each():
        assert held(threads) == [CORES] * len(CORES)


def test_a_thread_that_cannot_be_held_is_no_error(threads, monkeypatch):
    monkeypatch.setattr(cores, "_threads", lambda: (*threads[1:], 2**22 + 1))  # more than Linux ever counts
    with cores.one_each():
        pass
    assert held(threads) == [CORES] * len(CORES)


def test_the_threads_that_compute_are_found():
    """By their name, which another version of XLA may change: then they would be found no more, and this says so."""

    def seconds(thread):
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9

    ones = jax.device_put(jnp.ones((2048, 256)), jax.devices("cpu")[0])
    cores._threads.cache_clear()
    found = cores._threads()
    before = sum(map(seconds, found))
    for _ in range(20):
        jax.block_until_ready(jnp.tanh(ones @ ones.T))
    assert sum(map(seconds, found)) > before

"""The tests of `rlkit._cpu` run with its tricks on, whatever the environment of the process."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _tricks_are_on(monkeypatch):
    monkeypatch.setenv("RLKIT_CPU_TRICKS", "1")


@pytest.fixture
def without_tricks(monkeypatch):
    """Return a function that calls another one without the tricks; nothing that was traced before is used again."""

    def call(fn, *args):
        jax.clear_caches()
        with monkeypatch.context() as patch:
            patch.setenv("RLKIT_CPU_TRICKS", "0")
            result = jax.block_until_ready(fn(*args))
        jax.clear_caches()
        return result

    return call

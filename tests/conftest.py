"""Strictness for every test: no silent dtype promotion, no silent rank promotion, warnings are errors.

Tests run on all cores that this process may use. Most of their time is compilation, so the processes of a session share
a folder of compiled programs, as sessions do that find its name in the environment, and most tests compile without most
optimizations. Tests marked `optimized` or `slow` are compiled as users' programs are, and so are thorough tests of the
folders in `OPTIMIZED`, and all that a test starts in another process (the command line, notebooks, workers of
environments).
"""

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import pytest

PLATFORMS = os.environ.get("JAX_PLATFORMS")
PROGRAMS = "RLKIT_TEST_PROGRAMS"  # the variable that names the session's folder of compiled programs
UNTIL = "RLKIT_THOROUGH_UNTIL"  # the variable with the time (seconds since 1970) after which no thorough test begins
quickly: bool | None = None  # the present way of compiling
OPTIMIZED = ("learning", "programs")  # about what the compiler makes, or long trainings
LONG = ("test_notebooks", "test_resume", "test_marks")  # files with the longest single tests


def set_if_known(name: str, value: Any) -> None:
    """Set an option of JAX that only makes tests faster; without effect where this JAX has no such option."""
    with contextlib.suppress(AttributeError):
        jax.config.update(name, value)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "thorough":
        config.option.markexpr = "thorough and not slow"  # a slow test of a file that is thorough
    gc.set_threshold(100_000, 20, 100)  # traced programs are many objects, of which few are ever garbage
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # A later line takes precedence: warnings raised in gymnax and JaxMARL are not errors here.
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("filterwarnings", r"default:::gymnax(\.|$)")
    config.addinivalue_line("filterwarnings", r"default:::jaxmarl(\.|$)")
    if PROGRAMS not in os.environ:
        os.environ[PROGRAMS] = config.rlkit_programs = tempfile.mkdtemp(prefix="rlkit-tests-")
    set_if_known("jax_compilation_cache_dir", os.environ[PROGRAMS])
    set_if_known("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (own := getattr(config, "rlkit_programs", None)) is not None:
        shutil.rmtree(own, ignore_errors=True)
        del os.environ[PROGRAMS]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Number of cores that this process may run on, for `-n auto`, which otherwise counts the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_optimized(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("optimized", "slow"))) or (
        item.get_closest_marker("thorough") is not None and item.path.parent.name in OPTIMIZED
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the way of compiling; among equals, files with long single tests first, so that no core waits for one."""
    items.sort(key=lambda item: (is_optimized(item), item.path.stem not in LONG))


@pytest.hookimpl(tryfirst=True)  # before any fixture compiles
def pytest_runtest_setup(item: pytest.Item) -> None:
    global quickly
    if time.time() > float(os.environ.get(UNTIL, "inf")) and item.get_closest_marker("thorough"):
        pytest.skip("the time for thorough tests is used up")
    before, quickly = quickly, not is_optimized(item)
    if quickly != before:
        set_if_known("jax_disable_most_optimizations", quickly)
        jax.clear_caches()  # of programs that were compiled in the other way


@pytest.fixture(autouse=True, scope="session")
def _platform_is_unchanged() -> Iterator[None]:
    """Tests run on the device that JAX finds; neither the package nor a test may set JAX_PLATFORMS."""
    jax.devices()  # started with the present settings, whichever test is first
    yield
    assert os.environ.get("JAX_PLATFORMS") == PLATFORMS, "JAX_PLATFORMS was set during the tests"


@pytest.fixture(scope="module")
def compiled_once() -> Iterator[None]:
    """Programs of equal shapes, also small ones, are compiled once for the tests of a file."""
    from tiny_runs import shared_compilations

    with shared_compilations():
        yield

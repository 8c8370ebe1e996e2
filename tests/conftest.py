"""Strictness for every test: no silent dtype promotion, no silent rank promotion, warnings are errors.

And what makes the tests quick: most of their time is compilation, so a session's processes share a folder of compiled
programs, and tests compile without most optimizations unless they are marked: `optimized` compiles as users do, and
`planned` stops before LLVM optimizes, of which what XLA says of a program (its text, its memory) is independent.
Processes that tests start (the command line, notebooks, workers) compile as users' do.
"""

import gc
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import lru_cache

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir

PLATFORMS = os.environ.get("JAX_PLATFORMS")
PROGRAMS = "RLKIT_TEST_PROGRAMS"  # where the processes of a session find the folder
LONG = ("test_notebooks", "test_resume", "test_marks")
QUICK: dict[str, bool] = {}  # options of XLA for whatever compiles now


def _compile_quickly() -> None:
    """Where most optimizations are off, let XLA's CPU backend emit LLVM directly, too.

    No setting of JAX reaches every compilation, so this goes through one of its internals; without it, tests are slow.
    """
    of_jax = getattr(compiler, "get_compile_options", None)
    if of_jax is None:
        return

    def options(*args, env_options_overrides=None, **kwargs):
        return of_jax(*args, env_options_overrides=QUICK | dict(env_options_overrides or {}), **kwargs)

    compiler.get_compile_options = options


def _lower_quickly() -> None:
    """Lower many programs in one context: to make and to end one takes 5 ms of the 35 that a small program takes.

    It goes through an internal of JAX as well. A context keeps what it was told, so now and then there is a new one.
    """
    of_jax, uses = getattr(mlir, "make_ir_context", None), itertools.count()
    if of_jax is None:
        return
    numbered = lru_cache(maxsize=1)(lambda _: of_jax())

    def context():
        return numbered(next(uses) // 500)

    mlir.make_ir_context = context
    jax.config.update("jax_traceback_in_locations_limit", 0)  # nor does a test read where an operation came from


def pytest_configure(config: pytest.Config) -> None:
    _compile_quickly()
    _lower_quickly()
    gc.set_threshold(100_000, 20, 100)  # what JAX keeps of traced programs is much, and rarely garbage
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    # A later line takes precedence: what gymnax and the packages it drags in warn about is not ours to mend.
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("filterwarnings", r"default:::gymnax(\.|$)")
    if not hasattr(config, "workerinput"):
        os.environ[PROGRAMS] = tempfile.mkdtemp(prefix="rlkit-tests-")
    jax.config.update("jax_compilation_cache_dir", os.environ[PROGRAMS])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose single tests take longest go first, so that where there are several processes none waits for one."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(PROGRAMS), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before any fixture compiles
def pytest_runtest_setup(item: pytest.Item) -> None:
    optimized, planned = (item.get_closest_marker(name) is not None for name in ("optimized", "planned"))
    jax.config.update("jax_disable_most_optimizations", not optimized)
    QUICK.clear()
    QUICK.update({} if optimized or planned else {"xla_cpu_use_fusion_emitters": False})


@pytest.fixture(autouse=True, scope="session")
def _platform_is_the_users_choice() -> Iterator[None]:
    """The tests run on whatever device JAX finds; neither the package nor a test may force one on the process."""
    jax.devices()  # started as it is configured now, whatever test comes first
    yield
    assert os.environ.get("JAX_PLATFORMS") == PLATFORMS, "JAX_PLATFORMS was set during the tests"

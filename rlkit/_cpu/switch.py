"""The switch that turns all of `_cpu` off."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_off = ContextVar("off", default=False)


def enabled() -> bool:
    """True unless RLKIT_CPU_TRICKS is 0, or inside of `plain`; read each time that a function is traced."""
    return not _off.get() and os.environ.get("RLKIT_CPU_TRICKS", "1") != "0"


@contextmanager
def plain() -> Iterator[None]:
    """Trace the plain computation inside of the block, in this thread, for programs of other platforms.

    A function that was traced before, and that JAX has kept, is not traced again.
    """
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)

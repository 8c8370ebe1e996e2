"""Failures and signals of one process of a run whose environments are outside of JAX: all processes take the same path.

Each process steps environments of its own. Where one of them raised alone, the others would wait for it in the next
exchange.
"""

from collections.abc import Callable
from typing import TypeVar

from rlkit.hosts.collect import NotFinite
from rlkit.hosts.failure import HostError
from rlkit.hosts.processes import Interrupted
from rlkit.training import processes
from rlkit.types import ConfigError

# Where processes raise several of these, all raise the one that comes last here.
KINDS = (Interrupted, NotFinite, ConfigError, HostError)

T = TypeVar("T")


def caught(function: Callable[[], T]) -> T | Exception:
    """Return what a function returns, or the exception of one of `KINDS` that it raises."""
    try:
        return function()
    except KINDS as error:
        return error


def agreed(result: T | Exception) -> T:
    """Return a result of `caught`, or raise an exception in all processes where any of them has one."""
    own = max((place for place, kind in enumerate(KINDS, 1) if isinstance(result, kind)), default=0)
    place = processes.greatest(own)
    if not place:
        return result  # pyright: ignore[reportReturnType]
    texts = processes.texts(str(result) if own == place else "")
    if own == place:
        raise result  # pyright: ignore[reportGeneralTypeIssues]
    raise KINDS[place - 1](next(filter(None, texts), ""))

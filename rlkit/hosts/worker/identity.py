"""Identity of environments: each environment of a process is an object of its own."""

import threading
from collections.abc import Iterable
from typing import Any

from rlkit.hosts.worker.contract import Violation

_lock = threading.Lock()
_in_use: dict[int, Any] = {}  # the objects of all groups of this process by id, which is theirs while they are here


def claim(env: Any) -> list[Any]:
    """Mark an environment, and those that it wraps, as in use; return them, for `release`.

    Raises:
      Violation: one of them is in use already, so that two environments would have one state.
    """
    parts = _parts(env)
    with _lock:
        if any(id(part) in _in_use for part in parts):
            raise _shared()
        _in_use.update((id(part), part) for part in parts)
    return parts


def release(parts: Iterable[Any]) -> None:
    """Mark environments as not in use any more."""
    with _lock:
        for part in parts:
            _in_use.pop(id(part), None)


def check_distinct(envs: Iterable[Any]) -> None:
    """Raise Violation where two environments are, or wrap, the same object."""
    parts = [id(part) for env in envs for part in _parts(env)]
    if len(set(parts)) < len(parts):
        raise _shared()


def _shared() -> Violation:
    got = "an object that another one is or wraps; make the environment inside of the function that returns it"
    return Violation("the constructor", "a new object for each environment", got)


def _parts(env: Any) -> list[Any]:
    """The environment, and all those that it wraps: a maker may wrap a shared one anew."""
    parts = [env]
    for name in ("env", "unwrapped"):
        inner = env
        while (inner := _inner(inner, name)) is not None and all(inner is not part for part in parts):
            parts.append(inner)
    return parts


def _inner(env: Any, name: str) -> Any:
    """An attribute of an environment that is one too; None where there is none."""
    try:
        inner = getattr(env, name, None)
        return inner if hasattr(inner, "step") and hasattr(inner, "reset") else None
    except Exception:  # of a property of the user's
        return None

"""Counts of the programs that JAX compiles."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def compilations() -> Iterator[list[str]]:
    """A list that gets an entry for each program that is compiled, or read from the cache, in the block."""
    names: list[str] = []

    def note(name: str, *_: object, **about: object) -> None:
        if "backend_compile" in name:
            names.append(str(about.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(note)

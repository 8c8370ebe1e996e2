"""Counts of the programs that JAX compiles, and programs of equal configs that are traced and compiled once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jax
import pytest

from rlkit.runs.config import changes
from rlkit.runs.programs.jax_program import JaxProgram

ONCE = ("_device_template", "_metrics_num_bytes", "_compiled_advance", "_compiled_evaluate")
EVALUATION = {"eval_env", "eval_env_kwargs", "eval_wrappers", "eval_episodes", "eval_max_steps"}


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


def _shape(program: JaxProgram) -> tuple[Any, ...]:
    """What programs have in common whose traced functions are equal: all keys but those that a run may change."""
    config, flat = program.config, program.config.flat()
    kept = {key: flat[key] for key in flat if key in EVALUATION or not changes.may_change(key, config.run.agent)}
    del kept["seed"]
    return repr(kept), program.seeds.shape, config.updates_per_line


@contextmanager
def remembered_programs(known: dict[tuple[Any, ...], Any] | None = None) -> Iterator[None]:
    """In the block, runs and sweeps of equal shapes in JAX share what is traced and compiled, which is most of their
    time. For tests of what runs do with their programs: they go on, they are stopped, killed, damaged, compared.

    Args:
      known: what earlier blocks have made, which this one adds to.
    """
    known = {} if known is None else known
    start = JaxProgram.start

    def once(name: str) -> Any:
        made = vars(JaxProgram)[name].func

        def remembered(self: JaxProgram) -> Any:
            if self.stored is not None or self.num_devices > 1:
                return made(self)
            if (key := (name, name != "_compiled_advance" or self.stop_if_not_finite, *_shape(self))) not in known:
                known[key] = made(self)
            return known[key]

        found = cached_property(remembered)
        found.__set_name__(JaxProgram, name)
        return found

    def started(self: JaxProgram) -> Any:
        if self.stored is not None or self.num_devices > 1:
            return start(self)
        if (key := ("start", *_shape(self))) not in known:
            known[key] = jax.jit(self._init)
        return known[key](self._device_runs)

    with pytest.MonkeyPatch.context() as patch:
        for name in ONCE:
            patch.setattr(JaxProgram, name, once(name))
        patch.setattr(JaxProgram, "start", started)
        yield

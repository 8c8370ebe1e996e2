"""A buffer of pure functions, timed inside of jitted scans and as called from Python."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from workload import Operations, cycles, each

MODES = {"jit": 2000, "python": 500}  # cycles of a round


class Functions(NamedTuple):
    """A buffer as pure functions."""

    add: Callable[[Any, Any], Any]  # state, step -> state
    sample: Callable[[Any, Any], tuple[Any, Any]]  # state, key -> items and weights, first argument of update
    update: Callable[[Any, Any, Any], Any] | None  # state, handle of a sample, priority [B] -> state


def donated(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function, donate_argnums=0)


def scans(functions: Functions) -> dict[str, Callable[..., Any]]:
    """Programs (state, inputs of n cycles) -> state, outputs: each operation by itself, and the whole cycle twice.

    In "total" the new priorities depend on the whole sample, as on items and weights in a learner. In "independent"
    they do not: unless the library orders the reads of the sample before the writes of the update, XLA copies the
    arrays of both in every cycle.
    """

    def add(state: Any, step: Any) -> tuple[Any, Any]:
        return functions.add(state, step), ()

    def sample(state: Any, key: jax.Array) -> tuple[Any, Any]:
        drawn, handle = functions.sample(state, key)
        checksum = sum(jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(drawn))  # so that XLA removes nothing
        return state, (checksum, handle)

    def update(state: Any, inputs: Any) -> tuple[Any, Any]:
        return (state if functions.update is None else functions.update(state, *inputs)), ()

    def cycle(state: Any, inputs: Any, *, dependent: bool) -> tuple[Any, Any]:
        step, key, priority = inputs
        state, _ = add(state, step)
        _, (checksum, handle) = sample(state, key)
        state, _ = update(state, (handle, jnp.where(jnp.isinf(checksum), 0.0, priority) if dependent else priority))
        return state, checksum

    bodies = {"total": partial(cycle, dependent=True), "sample": sample, "add": add}
    if functions.update is not None:
        bodies |= {"update": update, "independent": partial(cycle, dependent=False)}

    def over(body: Callable[..., Any]) -> Callable[..., Any]:
        return donated(lambda state, inputs: jax.lax.scan(body, state, inputs))

    return {name: over(body) for name, body in bodies.items()}


def one_call(
    functions: Functions, state: Any, handle: Any, priority: Any, step: Any, key: jax.Array
) -> tuple[Any, Any]:
    """One cycle as one function, in a learner's order: priorities of the last sample, then a step, then a sample."""
    if functions.update is not None:
        state = functions.update(state, handle, priority)
    state = functions.add(state, step)
    return state, functions.sample(state, key)


class JaxCase:
    """A buffer, its state, and the inputs of a round: the same steps and priorities in every round, and other keys."""

    def __init__(
        self,
        functions: Functions,
        state: Any,
        steps: Callable[[int], dict[str, np.ndarray]],
        record: Callable[..., Any],
        *,
        batch: int,
        counts: dict[str, int] = MODES,
        check: Callable[[Any], dict[str, Any]],
        few: int | None = None,
    ):
        """Prepare programs and inputs.

        Args:
          functions: the buffer.
          state: its full state.
          steps: n -> leaves [n, ...] of n steps.
          record: leaves of a step -> argument of `functions.add`.
          batch: B, the number of priorities of an update.
          counts: cycles of a round, by mode.
          check: state -> results of a check.
          few: cycles of the scan in which XLA may copy; None for as many as of the others.
        """
        rng = np.random.default_rng(1)
        self.state, self.counts, self.checked = state, counts, check
        many, called = counts["jit"], counts["python"]
        priority = 1 - rng.random((max(many, called), batch), np.float32)
        self.jit_inputs = jax.tree.map(jnp.asarray, (record(**steps(many)), priority[:many]))
        self.few = min(few or many, many)
        self.scans = scans(functions)
        self.python_inputs = [record(**step) for step in each(steps(called), called)], list(priority[:called])
        self.calls = [donated(functions.add), jax.jit(functions.sample), functions.update and donated(functions.update)]
        self.cycle = donated(partial(one_call, functions))
        self.modes = {"jit": self.jit, "python": self.python}

    def keys(self, seed: int, mode: str) -> jax.Array:
        return jax.block_until_ready(jax.random.split(jax.random.key(seed), self.counts[mode]))

    def scan(self, name: str, inputs: Any) -> tuple[float, Any]:
        """Run one of the scans; return seconds a cycle and its outputs."""
        count = jax.tree.leaves(inputs)[0].shape[0]
        begin = time.perf_counter()
        self.state, outputs = jax.block_until_ready(self.scans[name](self.state, inputs))
        return (time.perf_counter() - begin) / count, outputs

    def jit(self, seed: int) -> dict[str, float]:
        (steps, priority), keys = self.jit_inputs, self.keys(seed, "jit")
        before, seconds = jax.tree.leaves(self.state), {}
        seconds["total"], checksum = self.scan("total", (steps, keys, priority))
        assert all(leaf.is_deleted() for leaf in before), "the state was copied instead of donated"
        assert np.isfinite(checksum).all(), "a sample is not finite"
        seconds["sample"], (_, handles) = self.scan("sample", keys)
        if "update" in self.scans:
            seconds["update"], _ = self.scan("update", (handles, priority))
            some = jax.tree.map(lambda x: x[: self.few], (steps, keys, priority))
            seconds["independent"], _ = self.scan("independent", jax.block_until_ready(some))
        seconds["add"], _ = self.scan("add", steps)
        return seconds

    def python(self, seed: int) -> dict[str, float]:
        add, sample, update = self.calls

        def change(function: Callable[..., Any], *arguments: Any) -> None:
            self.state = jax.block_until_ready(function(self.state, *arguments))

        operations = Operations(
            add=partial(change, add),
            sample=lambda key: jax.block_until_ready(sample(self.state, key))[1],
            update=update and partial(change, update),
        )
        steps, priority = self.python_inputs
        inputs = list(zip(steps, list(self.keys(seed, "python")), priority, strict=True))
        return cycles(operations, inputs) | {"one call": self.in_one_call(inputs)}

    def in_one_call(self, inputs: Sequence[tuple[Any, jax.Array, Any]]) -> float:
        """Median seconds of `one_call`, of inputs (step, key, priority)."""
        _, handle = self.calls[1](self.state, inputs[0][1])
        times = []
        for step, key, priority in inputs:
            begin = time.perf_counter()
            arguments = (handle, priority, step, key)
            self.state, (_, handle) = jax.block_until_ready(self.cycle(self.state, *arguments))
            times.append(time.perf_counter() - begin)
        return float(np.median(times))

    def check(self) -> dict[str, Any]:
        return self.checked(self.state)

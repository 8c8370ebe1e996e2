"""Compiled programs, timed in rounds that alternate between them, within a budget of time."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax

Update = tuple[str, dict[str, Any]]  # the name of a case, and fields of it that are new

# XLA's own defaults are the first six.
LOOPS_AS_GRAPHS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
}


class Budget:
    """Seconds that a part may take."""

    def __init__(self, seconds: float):
        self.begin, self.seconds = time.monotonic(), seconds

    def over(self, share: float = 1.0) -> bool:
        """True where more than this share of the time is used up."""
        return time.monotonic() - self.begin > share * self.seconds


class Timed(Protocol):
    """Something that is compiled, and that can be run again and again."""

    about: dict[str, Any]  # fields of the case, compile time among them

    def run(self, seed: int) -> dict[str, float]:
        """Seconds, by operation, of work that is complete."""
        ...


class Program:
    """A function state -> state, compiled, with its state donated; a run is one call of it."""

    def __init__(
        self, function: Callable[[Any], Any], state: Any, amount: int, unit: str, options: dict[str, Any] | None = None
    ):
        begin = time.perf_counter()
        self.compiled = jax.jit(function, donate_argnums=0).lower(state).compile(compiler_options=options)
        self.about = {"compile": time.perf_counter() - begin, "amount": amount, "unit": unit}
        self.state = jax.block_until_ready(state)

    def run(self, seed: int) -> dict[str, float]:
        begin = time.perf_counter()
        self.state = jax.block_until_ready(self.compiled(self.state))
        return {"call": time.perf_counter() - begin}


def repeated(step: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    """The function that applies `step`, state -> state, `count` times."""
    return lambda state: jax.lax.scan(lambda state, _: (step(state), None), state, None, count)[0]


def measure(cases: Mapping[str, Callable[[], Timed]], rounds: int, budget: Budget) -> Iterator[Update]:
    """Compile every case, then run all of them in each round; yield what is new of a case as soon as it is known.

    Compilation may take two thirds of the time. One round before the timed ones warms up.
    """
    running: dict[str, Timed] = {}
    for name, make in cases.items():
        if budget.over(2 / 3):
            yield name, {"left out": "no time left to compile it"}
            continue
        try:
            running[name] = make()
            yield name, running[name].about
        except jax.errors.JaxRuntimeError as error:
            yield name, {"left out": first_line(error)}
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in running}
    for seed in range(rounds + 1):
        for name in [*running]:
            if seed > 1 and budget.over():
                return
            try:
                took = running[name].run(seed)
            except jax.errors.JaxRuntimeError as error:
                del running[name]
                yield name, {"left out": first_line(error)}
                continue
            for operation, value in took.items() if seed else ():
                seconds[name].setdefault(operation, []).append(value)
            yield name, {"seconds": seconds[name]} if seed else {}


def first_line(error: Exception) -> str:
    """The first line of an error's text, which for XLA's may be pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]

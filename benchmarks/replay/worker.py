"""One library's replay buffers in a process of its own, for run.py: `python worker.py LIBRARY [--inline]`.

With `--inline` JAX computes on the thread of the caller.

The protocol is that of `workers.serve`: {"build": [name, kind, arguments]} fills a buffer, {"run": [name, mode, seed]}
returns the seconds of a cycle by operation, {"check": [name]} a check of its contents.
"""

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from workload import Case

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common.workers import serve

PACKAGES = {
    "rlkit": ("rlkit-jax", "jax", "jaxlib"),
    "flashbax": ("flashbax", "jax", "jaxlib"),
    "cpprb": ("cpprb", "numpy"),
    "torchrl": ("torchrl", "tensordict", "torch"),
}


class Worker:
    """Holds the buffers that have been built, by name."""

    def __init__(self, kinds: dict[str, Callable[..., Case]]):
        self.kinds = kinds
        self.cases: dict[str, Case] = {}

    def build(self, name: str, kind: str, arguments: dict[str, Any]) -> list[str]:
        """Fill a buffer; return the modes in which it can be timed."""
        self.cases[name] = self.kinds[kind](**arguments)
        return list(self.cases[name].modes)

    def run(self, name: str, mode: str, seed: int) -> dict[str, float]:
        return self.cases[name].modes[mode](seed)

    def check(self, name: str) -> dict[str, Any]:
        return self.cases[name].check()

    def drop(self, name: str) -> None:
        del self.cases[name]
        gc.collect()  # a case refers to itself by its methods, and its memory is needed for the next one


def main() -> None:
    library, *inline = sys.argv[1:]
    if inline:
        import jax

        jax.config.update("jax_cpu_enable_async_dispatch", False)
    serve(Worker(import_module(f"{library}_buffers").KINDS), PACKAGES[library])


if __name__ == "__main__":
    main()

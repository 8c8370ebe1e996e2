"""A worker that compiles and runs whole trainings, each as one program."""

import time
from collections.abc import Callable
from typing import Any

PACKAGES = ("rlkit-jax", "rejax", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy")

Train = Callable[[Any], Any]  # key -> the state at the end


class Trainer:
    """Compiles and runs the trainings of one library; the last compiled one is kept."""

    def __init__(self, library: Callable[[int, int], tuple[Train, Callable[[Any], int]]]):
        self.library = library

    def compile(self, num_envs: int, updates: int) -> dict[str, float]:
        """Trace, lower and compile a whole run, without caches of an earlier compilation; seconds."""
        import jax

        jax.clear_caches()
        train, self.count = self.library(num_envs, updates)
        begin = time.perf_counter()
        lowered = jax.jit(train).lower(jax.random.key(0))
        middle = time.perf_counter()
        self.compiled = lowered.compile()
        end = time.perf_counter()
        return {"seconds": end - begin, "lower": middle - begin, "compile": end - middle}

    def run(self, seed: int) -> dict[str, float]:
        """Run the compiled program: seconds, and the environment steps that it has counted."""
        import jax

        key = jax.block_until_ready(jax.random.key(seed))
        begin = time.perf_counter()
        out = jax.block_until_ready(self.compiled(key))
        return {"seconds": time.perf_counter() - begin, "steps": self.count(out)}

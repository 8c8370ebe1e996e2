"""rlkit's segment tree by itself, at several fan-outs, for run.py; it runs on JAX's default device."""

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax_case import donated
from workload import CHUNK, Operations, cycles

from rlkit.replay import segment_tree

STATISTICS = ("sum", "min", "max")
CYCLES = {"jit": 1000, "python": 100}
SMALL = 4096  # batches above it have fewer cycles


def draw(tree: Any, key: Any, *, batch: int) -> jax.Array:
    return segment_tree.sample(tree, key, batch)


def put(tree: Any, leaf: jax.Array, value: jax.Array) -> Any:
    return segment_tree.write(tree, leaf, value)


class Trees:
    """A tree with distinct leaves; timed are samples, writes to the sampled leaves, and both."""

    def __init__(self, leaves: int, batch: int, fanout: int):
        self.leaves, self.batch, self.tree = leaves, batch, segment_tree.init(leaves, STATISTICS, fanout=fanout)
        self.counts = {mode: max(count * SMALL // max(batch, SMALL), 20) for mode, count in CYCLES.items()}
        self.put = donated(put)
        key = jax.random.key(0)
        for start in range(0, leaves, CHUNK * 64):
            places = jnp.arange(start, min(start + CHUNK * 64, leaves), dtype=jnp.int32)
            values = jax.random.uniform(jax.random.fold_in(key, start), places.shape, minval=0.01)
            self.tree = self.put(self.tree, places, values)
        self.draw = jax.jit(partial(draw, batch=batch))
        self.scans = {name: donated(partial(self.scan, name)) for name in ("sample", "write", "total")}
        self.modes = {"jit": self.jit, "python": self.python}

    def scan(self, operation: str, tree: Any, inputs: Any) -> tuple[Any, jax.Array]:
        """Scan over cycles of one of the operations, or of both; for `write` the leaves are part of the inputs."""

        def cycle(tree: Any, one: Any) -> tuple[Any, jax.Array]:
            key, leaf, value = one
            leaf = leaf if operation == "write" else draw(tree, key, batch=self.batch)
            return tree if operation == "sample" else put(tree, leaf, value), jnp.sum(leaf, dtype=jnp.float32)

        return jax.lax.scan(cycle, tree, inputs)

    def inputs(self, seed: int, mode: str) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys [n], leaves [n, B] and values [n, B]."""
        leaf_key, value_key, key = jax.random.split(jax.random.key(seed), 3)
        shape = (self.counts[mode], self.batch)
        leaf = jax.random.randint(leaf_key, shape, 0, self.leaves)
        value = jax.random.uniform(value_key, shape, minval=0.01)
        return jax.block_until_ready((jax.random.split(key, shape[0]), leaf, value))

    def jit(self, seed: int) -> dict[str, float]:
        seconds, inputs = {}, self.inputs(seed, "jit")
        for name, scan in self.scans.items():
            begin = time.perf_counter()
            self.tree, _ = jax.block_until_ready(scan(self.tree, inputs))
            seconds[name] = (time.perf_counter() - begin) / self.counts["jit"]
        return seconds

    def python(self, seed: int) -> dict[str, float]:
        keys, _, values = self.inputs(seed, "python")

        def write(leaf: jax.Array, value: jax.Array) -> None:
            self.tree = jax.block_until_ready(self.put(self.tree, leaf, value))

        def sample(key: jax.Array) -> jax.Array:
            return jax.block_until_ready(self.draw(self.tree, key))

        operations = Operations(lambda step: None, sample, write)
        seconds = cycles(operations, list(zip([None] * len(keys), list(keys), list(values), strict=True)))
        return {"sample": seconds["sample"], "write": seconds["update"], "total": seconds["total"]}

    def check(self) -> dict[str, Any]:
        """Assert that the roots agree with the leaves; return the device and the error of the total."""
        leaves = segment_tree.values(self.tree)
        total, known = float(segment_tree.total(self.tree)), float(jax.device_get(leaves).astype("float64").sum())
        assert abs(total - known) < 1e-6 * known, f"the total is {total}, the sum of the leaves {known}"
        assert float(segment_tree.minimum(self.tree)) == float(leaves.min())
        assert float(segment_tree.maximum(self.tree)) == float(leaves.max())
        device = jax.devices()[0]
        return {"device": f"{device.platform} ({device.device_kind})", "error": abs(total - known) / known}


KINDS = {"trees": Trees}

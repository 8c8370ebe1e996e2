"""Memories along 1,024 steps: minGRU, which runs over all of them at once, beside the GRUs of rlkit and of flax.

Milliseconds of a forward pass and of a gradient by all weights, on features [1024, B, 128] among which episodes start.
flax's `nn.GRUCell` runs under `nn.scan`, its memory reset where an episode starts, as in PureJaxRL. Rounds alternate.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

from rlkit.networks.cores import recurrent, registry

HERE = Path(__file__).resolve().parent
T, WIDTH, BATCHES = 1024, 128, (8, 16)
WAYS = ("minGRU", "GRU", "flax's GRU")
TARGET = 3.0  # times as fast as either GRU, of a gradient


class FlaxGRU(nn.Module):
    """flax's cell along time, with resets."""

    @nn.compact
    def __call__(self, memory, x, start):
        def row(cell, memory, inputs):
            x, start = inputs
            return cell(jnp.where(start[:, None], 0.0, memory), x)

        along = nn.scan(row, variable_broadcast="params", split_rngs={"params": False})
        return along(nn.GRUCell(WIDTH), memory, (x, start))[1]


def rlkit_core(name: str) -> tuple[Callable, Callable]:
    """`init` and `apply` of (memory, x, start), as agents run a core along time."""
    core = registry.core(name, WIDTH, 1)
    first = registry.start(name, WIDTH, 1)

    def apply(variables, memory, x, start):
        hidden = core.apply(variables, x, method="project")
        if hasattr(core, "unroll"):
            return core.apply(variables, (memory,), hidden, start, method="unroll")[0]

        def step(memory, x):
            return core.apply(variables, memory, x, method="advance")

        return recurrent.unroll(step, first, memory, hidden, start)[0]

    def step(core, memory, x):
        return core.advance(memory if isinstance(first, np.ndarray) else (memory,), core.project(x))

    return lambda key, memory, x, start: core.init(key, memory, x[0], method=step), apply


def networks() -> dict[str, tuple[Callable, Callable]]:
    return {
        "minGRU": rlkit_core("mingru"),
        "GRU": rlkit_core("gru"),
        "flax's GRU": (FlaxGRU().init, FlaxGRU().apply),
    }


def measure(batch: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(T, batch, WIDTH)), jnp.float32)
    memory, start = jnp.zeros((batch, WIDTH)), jnp.asarray(rng.random((T, batch)) < 0.01)
    functions = {}
    for way, (init, apply) in networks().items():
        variables = jax.jit(init)(jax.random.key(0), memory, x, start)

        def loss(variables, apply=apply):
            return jnp.mean(jnp.square(apply(variables, memory, x, start)))

        for kind, function in (("forward", loss), ("gradient", jax.grad(loss))):
            program = jax.jit(function).lower(variables).compile()
            functions[f"{kind}/{way}"] = lambda _, run=program, args=variables: jax.block_until_ready(run(args))
    report.interleaved(functions, 1)
    return {"seconds": report.interleaved(functions, rounds), "made": report.provenance()}


def render(results: Mapping[str, Any]) -> str:
    text, rows = f"# Memories along {T:,} steps\n\n", []
    for batch, result in results.items():
        for kind in ("forward", "gradient"):
            seconds = [result["seconds"][f"{kind}/{way}"] for way in WAYS]
            times = [f"{1e3 * statistics.median(x):.3g}" for x in seconds]
            ratios = [report.ratio(x, seconds[0]) for x in seconds[1:]]
            least = min(ratio["median"] for ratio in ratios)
            target = f">= {TARGET:g} {report.verdict(least >= TARGET)}" if kind == "gradient" else ""
            rows.append([batch, kind, *times, *map(report.spread, ratios), target])
    header = ["B", "pass", *(f"{way}, ms" for way in WAYS), "GRU / minGRU", "flax's GRU / minGRU", "target"]
    text += report.table(header, rows) + "\n"
    text += (
        f"Features [{T}, B, {WIDTH}] and {WIDTH} units, on a machine that had other work: the ratios of rounds that\n"
    )
    text += "alternate say more than the times.\n\n"
    return text + report.provenance_lines(result["made"] for result in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where memories.json and memories.md go")
    options = parser.parse_args()
    results = report.read(options.results, "memories")
    for batch in BATCHES:
        results[str(batch)] = measure(batch, options.rounds)
        report.write(options.results, "memories", results, render)


if __name__ == "__main__":
    main()

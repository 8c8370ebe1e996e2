"""Two choices of the networks, each beside what it stands in for, at several widths.

critics   SAC's two critics one after the other, and as one batched network: seconds of a gradient step (`update.py`)
weights   orthogonal weights by Newton-Schulz steps, and by QR: seconds to compile and to run the drawing of one square
          matrix, of which a network of two layers has one or two
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import update

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

from rlkit.agents import sac
from rlkit.networks.encoders import combine
from rlkit.networks.heads.critics import Critics
from rlkit.networks.initializers import orthogonal

HERE = Path(__file__).resolve().parent
PARTS = ("critics", "weights")


class BatchedCritics(nn.Module):
    """The critics of SAC, their weights stacked and their products batched."""

    make_encoder: combine.MakeEncoder
    count: int = 2

    @nn.compact
    def __call__(self, obs: Any, action: Any) -> Any:
        stacked = nn.vmap(
            Critics,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # pyright: ignore[reportArgumentType]
            axis_size=self.count,
        )
        return stacked(self.make_encoder, 1, None)(obs, action)[:, 0]


def batched(width: int) -> dict[str, Any]:
    described = sac.Config(hidden_sizes=(width, width)).model_dump(include=set(combine.SETTINGS))
    return {"critics": BatchedCritics(combine.split_settings(update.OBS_SPACE, described)[0])}


def of_critics(width: int, rounds: int) -> dict[str, list[float]]:
    data = update.arrays()
    functions = {
        "one after the other": update.rlkit("sac", width, data, tricks=True),
        "batched": update.rlkit("sac", width, data, tricks=True, networks=batched(width)),
    }
    report.interleaved(functions, 1)
    return {k: [x / update.COUNT for x in v] for k, v in report.interleaved(functions, rounds).items()}


def of_weights(width: int, rounds: int) -> dict[str, list[float]]:
    ways = {"Newton-Schulz": orthogonal(), "QR": nn.initializers.orthogonal()}
    functions, compiling = {}, {}
    for name, draw in ways.items():
        begin = time.perf_counter()
        compiled = (
            jax.jit(lambda key, draw=draw: draw(key, (width, width), jnp.float32)).lower(jax.random.key(0)).compile()
        )
        compiling[f"{name}, compiling"] = [time.perf_counter() - begin]
        functions[name] = lambda index, compiled=compiled: jax.block_until_ready(compiled(jax.random.key(index)))
    report.interleaved(functions, 1)
    return report.interleaved(functions, rounds) | compiling


def render(results: Mapping[str, Any]) -> str:
    text = "# Choices of the networks\n\n"
    titles = {
        "critics": "Milliseconds of a gradient step of SAC, two critics, batches of 256",
        "weights": "Milliseconds of the drawing of one orthogonal matrix [units, units]",
    }
    for part in PARTS:
        measured = [result for result in results.values() if result["part"] == part]
        if not measured:
            continue
        rows = []
        for result in measured:
            seconds = result["seconds"]
            first, second = list(seconds)[:2]
            times = [f"{1e3 * float(np.median(x)):.3g}" for x in seconds.values()]
            rows.append([result["width"], *times, report.spread(report.ratio(seconds[first], seconds[second]))])
        text += f"## {titles[part]}\n\n"
        text += report.table(["units", *measured[0]["seconds"], f"{first} / {second}"], rows) + "\n"
    return text + report.provenance_lines(result["made"] for result in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds (%(default)s)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--results", type=Path, default=HERE, help="where choices.json and choices.md go")
    options = parser.parse_args()
    os.environ["RLKIT_CPU_TRICKS"] = "1"
    results = report.read(options.results, "choices")
    for part in options.parts:
        for width in options.widths:
            seconds = {"critics": of_critics, "weights": of_weights}[part](width, options.rounds)
            results[f"{part} {width}"] = {"part": part, "width": width, "seconds": seconds, "made": report.provenance()}
            report.write(options.results, "choices", results, render)


if __name__ == "__main__":
    main()

"""Time of a gradient step of SAC and TD3 in a scan, against the same in plain JAX (plain.py), at several widths.

Batches of 256 drawn from 100,000 transitions of HalfCheetah-v5's sizes (17 and 6 numbers). All run in one process, in
alternating rounds.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import plain

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

from rlkit import agents
from rlkit.spaces import Box
from rlkit.types import Transition

HERE = Path(__file__).resolve().parent
OBS, ACTION, CAPACITY, BATCH, COUNT = 17, 6, 100_000, 256, 200
OBS_SPACE = Box(-np.inf, np.inf, (OBS,))
TARGET = 1.15  # times the plain version's time, of SAC with 256 units


def arrays(seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    normal = partial(rng.standard_normal, dtype=np.float32)
    action = rng.uniform(-1, 1, (CAPACITY, ACTION)).astype(np.float32)
    terminated = rng.uniform(size=CAPACITY) < 0.001
    return tuple(
        map(jnp.asarray, (normal((CAPACITY, OBS)), action, normal(CAPACITY), terminated, normal((CAPACITY, OBS))))
    )


def rlkit(name: str, width: int, data: tuple[Any, ...], *, tricks: bool, networks: Any = None) -> Any:
    """A function of the number of a round that makes COUNT gradient steps and waits for them."""
    os.environ["RLKIT_CPU_TRICKS"] = str(int(tricks))
    module = agents.get(name)
    config = module.Config(
        hidden_sizes=(width, width), capacity=CAPACITY, batch_size=BATCH, learning_starts=0, replay_ratio=1.0
    )
    agent = module.make(config, OBS_SPACE, Box(-1.0, 1.0, (ACTION,)), networks)
    obs, action, reward, terminated, next_obs = data
    steps = Transition(obs, action, reward, terminated, jnp.zeros_like(terminated), next_obs, ())
    example = jax.tree.map(lambda x: x[0], steps)
    state = jax.jit(lambda key: agent.init(module.Hyper(), key, example, 1))(jax.random.key(0))
    state = jax.jit(agent.add)(state, jax.tree.map(lambda x: x[:, None], steps))
    learn = jax.jit(partial(agent.learn, num_steps=COUNT), donate_argnums=0)
    held = [state]
    compiled = learn.lower(held[0], jax.random.key(0)).compile()

    def run(index: int) -> None:
        held[0], metrics = compiled(held[0], jax.random.key(index))
        jax.block_until_ready(metrics)

    return run


def peer(name: str, width: int, data: tuple[Any, ...]) -> Any:
    plain.HIDDEN = width
    start, step = plain.make(name, data, BATCH, COUNT)
    held = [start(jax.random.key(0))]
    compiled = step.lower(held[0], jax.random.key(0)).compile()

    def run(index: int) -> None:
        held[0], metrics = compiled(held[0], jax.random.key(index))
        jax.block_until_ready(metrics)

    return run


def measure(name: str, width: int, rounds: int) -> dict[str, Any]:
    data = arrays()
    functions = {
        "plain": peer(name, width, data),
        "rlkit": rlkit(name, width, data, tricks=True),
        "rlkit, RLKIT_CPU_TRICKS=0": rlkit(name, width, data, tricks=False),
    }
    report.interleaved(functions, 1)
    seconds = report.interleaved(functions, rounds)
    return {"agent": name, "width": width, "seconds": {k: [x / COUNT for x in v] for k, v in seconds.items()}}


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for result in results.values():
        seconds = result["seconds"]
        ratio = report.ratio(seconds["rlkit"], seconds["plain"])
        has_target = result["agent"] == "sac" and result["width"] == 256
        rows.append(
            [
                result["agent"],
                result["width"],
                *(f"{1e3 * float(np.median(seconds[name])):.2f}" for name in seconds),
                report.spread(ratio),
                f"<= {TARGET} {report.verdict(ratio['median'] <= TARGET)}" if has_target else "",
            ]
        )
    header = ["agent", "units", "plain JAX ms", "rlkit ms", "without `_cpu` ms", "rlkit / plain", "target"]
    return (
        "# Gradient steps of SAC and TD3\n\nMilliseconds of one step in a scan of 200, batches of 256 from 100,000 "
        "transitions; two layers.\n\n"
        + report.table(header, rows)
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (%(default)s)")
    parser.add_argument("--agents", nargs="+", default=["sac", "td3"], choices=["sac", "td3"])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--results", type=Path, default=HERE, help="where update.json and update.md go")
    options = parser.parse_args()
    results = report.read(options.results, "update")
    for name in options.agents:
        for width in options.widths:
            results[f"{name} {width}"] = measure(name, width, options.rounds) | {"made": report.provenance()}
            report.write(options.results, "update", results, render)


if __name__ == "__main__":
    main()

"""PPO in worlds that are costly to make: a reset in every step, and episodes that begin in a pool of starts.

Seconds to compile one update, of the clock and of all threads of this process together, and to run some; 64
environments of 16 steps, a pool of 512. The extras craftax, jumanji and xland of rlkit are needed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

from rlkit import envs, training
from rlkit.agents import ppo

HERE = Path(__file__).resolve().parent
NUM_ENVS, NUM_STEPS, STARTS = 64, 16, 512
ENVS = (
    "jumanji:Maze-v0",
    "xland:XLand-MiniGrid-R9-25x25",
    "craftax:Craftax-Classic-Symbolic-v1",
    "craftax:Craftax-Symbolic-v1",
)
WAYS = {"resets": None, "pool": STARTS}


def compiled(name: str, size: int | None, updates: int) -> tuple[Callable[[int], Any], dict[str, float]]:
    """A function that makes some updates, each call after those of the call before; and its seconds of compiling."""
    env, params = envs.make(name)
    env = envs.wrap(env, ["flatten"])
    config = ppo.Config(hidden_sizes=(64, 64), num_epochs=2, num_minibatches=4)
    agent = ppo.make(config, env.observation_space(params), env.action_space(params))
    run = training.make(agent, env, params, num_envs=NUM_ENVS, num_steps=NUM_STEPS, reset_pool=size)
    state = jax.jit(run.init)(ppo.Hyper(), jax.random.key(0))
    begin, cpu = time.perf_counter(), time.process_time()
    step = jax.jit(run.step, donate_argnums=0).lower(state).compile()
    seconds = {"clock": time.perf_counter() - begin, "threads": time.process_time() - cpu}

    def update(index: int) -> None:
        nonlocal state
        for _ in range(updates):
            state, _ = step(state)
        jax.block_until_ready(state)

    return update, seconds


def measure(name: str, rounds: int, updates: int) -> dict[str, Any]:
    made = {way: compiled(name, size, updates) for way, size in WAYS.items()}
    functions = {way: function for way, (function, _) in made.items()}
    report.interleaved(functions, 1)
    seconds = {way: [x / updates for x in v] for way, v in report.interleaved(functions, rounds).items()}
    return {
        "env": name,
        "seconds": seconds,
        "compiling": {way: compiling for way, (_, compiling) in made.items()},
        "made": report.provenance(),
    }


def render(results: Mapping[str, Any]) -> str:
    text = "# Resets in every step, and a pool of starts\n\n"
    rows = []
    for result in results.values():
        rates = [NUM_ENVS * NUM_STEPS / float(np.median(result["seconds"][way])) for way in WAYS]
        compiling = [result["compiling"][way][kind] for kind in ("clock", "threads") for way in WAYS]
        ratio = report.ratio(*(result["seconds"][way] for way in WAYS))
        row = [result["env"], *(f"{x:,.0f}" for x in rates), report.spread(ratio), *(f"{x:.3g}" for x in compiling)]
        rows.append([*row, f"{compiling[0] / compiling[1]:.2f}", f"{compiling[2] / compiling[3]:.2f}"])
    header = ["environment", "steps/s with resets", "with a pool", "pool / resets", "compiling with resets, s"]
    header += ["with a pool, s", "threads with resets, s", "with a pool, s", "resets / pool", "of the threads"]
    text += report.table(header, rows) + "\n"
    text += (
        "Two programs in one process, in turn; seconds of compiling are of the clock, and of all threads together.\n\n"
    )
    return text + report.provenance_lines(result["made"] for result in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--updates", type=int, default=2, help="updates in a round (%(default)s)")
    parser.add_argument("--envs", nargs="+", default=ENVS)
    parser.add_argument("--results", type=Path, default=HERE, help="where resets.json and resets.md go")
    options = parser.parse_args()
    results = report.read(options.results, "resets")
    for name in options.envs:
        results[name] = measure(name, options.rounds, options.updates)
        report.write(options.results, "resets", results, render)


if __name__ == "__main__":
    main()

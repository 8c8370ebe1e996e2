"""Cost of checking each update of a run for NaN and infinity: the same chunks of updates with and without the check.

A run's compiled chunk checks losses, gradients, parameters, observations and rewards after each update.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit.runs import load_config
from rlkit.runs.programs.jax_program import JaxProgram

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
PPO = {"total_steps": 500_000, "num_epochs": 4, "num_minibatches": 4}
CASES: dict[str, dict[str, Any]] = {
    "ppo/cartpole": {"num_envs": 32, **PPO},
    "ppo/cartpole, 4 envs x 128 steps": {"num_envs": 4, "num_steps": 128, **PPO},
    "ppo/breakout_minatar": {},
    "dqn/cartpole": {"total_steps": 100_000, "capacity": 100_000, "batch_size": 128, "replay_ratio": 0.25},
    "sac/pendulum": {"total_steps": 20_000, "capacity": 50_000},
}
TARGET = 1.01


def prepared(name: str, *, watched: bool) -> tuple[Any, Any, int]:
    """Compile a chunk: the function, a state to start from, and the number of updates of the chunk."""
    config = load_config(name.partition(",")[0], CASES[name])
    program = JaxProgram(config)
    program.stop_if_not_finite = watched
    program.compile()
    count, state = config.updates_per_line, program.start()
    before = getattr(config.agent, "learning_starts", 0)  # steps without a gradient step
    for _ in range(1 + math.ceil(before / (count * config.steps_per_update))):
        state = program.advance(state, np.int32(count)).state
    return program.advance, jax.block_until_ready(state), count


def measure(name: str, rounds: int, least: float) -> dict[str, Any]:
    """CPU seconds of an update in each round; a round repeats the chunk for at least `least` seconds."""
    both = {kind: prepared(name, watched=kind == "watched") for kind in ("watched", "not")}
    seconds: dict[str, list[float]] = {kind: [] for kind in both}
    for index in range(rounds + 1):
        for kind, (advance, state, count) in both.items():
            begin, updates = time.process_time(), 0
            while time.process_time() - begin < least:
                jax.block_until_ready(advance(state, np.int32(count)))
                updates += count
            if index:  # the first warms up
                seconds[kind].append((time.process_time() - begin) / updates)
    return {"seconds": seconds, "made": report.provenance()}


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for name, result in results.items():
        cost = report.ratio(result["seconds"]["watched"], result["seconds"]["not"])
        update = 1e3 * float(np.median(result["seconds"]["watched"]))
        met = report.verdict(cost["median"] <= TARGET)
        rows.append([name, f"{update:.2f}", report.spread(cost, 3), f"<= {TARGET} {met}"])
    header = ["config", "CPU ms an update", "checked / not checked", "target"]
    text = "# Cost of checking for NaN and infinity\n\nMedians over alternating rounds of CPU seconds, and the "
    text += "least and the greatest ratio of a round.\n\n" + report.table(header, rows)
    return text + "\n" + report.provenance_lines(result["made"] for result in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"some of {'; '.join(CASES)} (all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU seconds of a round, at least (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where finite.json and finite.md go")
    options = parser.parse_args()
    results = report.read(options.results, "finite")
    for name in options.cases or CASES:
        results[name] = measure(name, options.rounds, options.seconds)
        report.write(options.results, "finite", results, render)


if __name__ == "__main__":
    main()

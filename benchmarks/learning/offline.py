"""Agents that learn from a dataset alone, beside the policy that collected it: Pendulum, from a half-trained SAC.

For each seed, SAC is trained for a few thousand steps, 100,000 steps of its exploring policy are collected, and the
agents learn from them, as by `rlkit train` and `rlkit collect`.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import collect, load_config, train

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
HALF, STEPS, SEEDS, EPISODES = 4000, 100_000, 10, 128
LEARNERS = {"IQL": "iql/pendulum", "TD3+BC": "td3_bc/pendulum", "BC": "bc/pendulum", "ReBRAC": "rebrac/pendulum"}
COLLECTOR = "SAC that collected"


def trained(name: str, out: Path, **keys: Any) -> float:
    """Train a config: the mean greedy return of its final parameters."""
    if train(load_config(name, {"eval_episodes": EPISODES, **keys}), out=out, show=False).evaluation is None:
        raise SystemExit(1)
    return json.loads((out / "eval.json").read_text())["mean"]


def measure(seed: int, folder: Path) -> dict[str, Any]:
    """One seed: returns of the policy that collects and of those that learn from its data."""
    begin, sac, data = time.perf_counter(), folder / "sac", folder / "data"
    keys = {"total_steps": HALF, "learning_rate_schedule": "constant"}
    returns = {COLLECTOR: trained("sac/pendulum", sac, seed=seed, **keys)}
    collect(sac, STEPS, data, seed=seed)
    for label, config in LEARNERS.items():
        returns[label] = trained(config, folder / config.partition("/")[0], dataset=str(data), seed=seed)
    return {"returns": returns, "seconds": time.perf_counter() - begin}


def render(results: Mapping[str, Any]) -> str:
    rows, collected = [], [seed["returns"][COLLECTOR] for seed in results["seeds"]]
    learned = [label for label in LEARNERS if all(label in seed["returns"] for seed in results["seeds"])]
    for label in (COLLECTOR, *learned):
        scores = [seed["returns"][label] for seed in results["seeds"]]
        table = np.asarray(scores, np.float32)
        low, high = (float(end) for end in iqm_interval(table, jax.random.key(0)))
        better = sum(ours > theirs for ours, theirs in zip(scores, collected, strict=True))
        beats = "" if label == COLLECTOR else f"{better} of {len(scores)}"
        met = None if label == COLLECTOR else statistics.mean(scores) > statistics.mean(collected)
        center = f"{float(iqm(table)):.1f} [{low:.1f}, {high:.1f}]"
        rows.append([label, f"{statistics.mean(scores):.1f}", f"{min(scores):.1f}", center, beats, report.verdict(met)])
    header = ["policy", "mean", "least seed", "IQM [95% interval]", "seeds that beat it", "mean is greater"]
    return (
        "# Learning from a dataset alone\n\n"
        f"Pendulum-v1. For each seed SAC is stopped after {HALF:,} steps and collects {STEPS:,}, exploring; the others "
        f"learn from these. Greedy returns of the final parameters, {EPISODES} episodes of each seed from 0 "
        "on.\n\n" + report.table(header, rows) + f"\n{report.provenance_line(results['made'])}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path, default=HERE, help="where offline.json and offline.md go")
    options = parser.parse_args()
    seeds = []
    with tempfile.TemporaryDirectory() as temporary:
        jax.config.update("jax_compilation_cache_dir", f"{temporary}/cache")  # one compilation for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        for seed in range(options.seeds):
            folder = Path(temporary) / str(seed)
            folder.mkdir()
            seeds.append(measure(seed, folder))
            print(seed, seeds[-1], file=sys.stderr)
            report.write(options.results, "offline", {"seeds": seeds, "made": report.provenance()}, render)


if __name__ == "__main__":
    main()

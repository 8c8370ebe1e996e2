"""Returns of PPO that collects while it learns (`overlap: true`), beside PPO that does one after the other.

With an overlap rollouts are one update old. What that costs depends on the size of an update, so both are trained with
several learning rates.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlkit import runs

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
ENVS = {"CartPole-v1": {"gamma": 0.99}, "Pendulum-v1": {"gamma": 0.9}}
RATES = (3e-4, 1e-3, 3e-3)
SETTINGS = {"agent": "ppo", "num_envs": 16, "num_steps": 64, "hidden_sizes": [64, 64], "eval_episodes": 64}
WAYS = {"in turn": False, "overlap": True}


def final_return(env: str, rate: float, overlap: bool, steps: int, seed: int) -> dict[str, float]:
    """The mean greedy return of the final parameters, and the largest `approx_kl` of the run."""
    settings = SETTINGS | ENVS[env] | {"env": f"gymnasium:{env}", "learning_rate": rate, "overlap": overlap}
    with tempfile.TemporaryDirectory() as folder:
        trained = runs.train(settings | {"total_steps": steps, "seed": seed}, out=f"{folder}/run", show=False)
        kl = max(line["approx_kl"] for line in runs.metrics.read(trained.run))
    if trained.evaluation is None:
        raise SystemExit(1)
    return {"return": trained.evaluation["mean"], "kl": kl}


def render(results: Mapping[str, Any]) -> str:
    text = f"# Returns of PPO with overlap and without\n\nGreedy returns after {results['steps']:,} steps.\n"
    for env, rates in results["returns"].items():
        rows = []
        for rate, ways in rates.items():
            for way, found in ways.items():
                listed = ", ".join(f"{one['return']:.0f}" for one in found)
                mean = sum(one["return"] for one in found) / len(found)
                rows.append([rate, way, listed, f"{mean:.0f}", f"{max(one['kl'] for one in found):.2f}"])
        header = ["learning rate", "collecting and learning", "return of each seed", "mean", "largest approx_kl"]
        text += f"\n## {env}\n\n" + report.table(header, rows)
    return text + "\n" + report.provenance_line(results["made"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="of each learning rate (%(default)s)")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of a run (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where overlap_returns.json and .md go")
    options = parser.parse_args()
    returns: dict[str, Any] = {}
    for env in ENVS:
        for rate in RATES:
            ways: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            returns.setdefault(env, {})[str(rate)] = ways
            for seed in range(options.seeds):
                for way, overlap in WAYS.items():
                    ways[way].append(final_return(env, rate, overlap, options.steps, seed))
            results = {"steps": options.steps, "returns": returns, "made": report.provenance()}
            report.write(options.results, "overlap_returns", results, render)


if __name__ == "__main__":
    main()

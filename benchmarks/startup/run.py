"""Seconds of `rlkit train ppo/cartpole` until CartPole is solved, as a new process in an empty directory.

Cold: the compilation cache is empty. Warm: the same command once more, in another empty directory.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
COMMAND = ["train", "ppo/cartpole"]
SOLVED = 475.0
TARGETS = {"cold": 20.0, "warm": 16.0}  # seconds


def timed(cache: Path) -> tuple[float, float]:
    """Run the process once: its seconds, and the mean return of the trained policy."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment["RLKIT_CACHE"] = str(cache)
    with tempfile.TemporaryDirectory() as empty:
        command = [sys.executable, "-m", "rlkit", *COMMAND]
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        if done.returncode:
            raise SystemExit(f"rlkit {' '.join(COMMAND)} ended with exit code {done.returncode}:\n{done.stderr}")
        (evaluation,) = Path(empty).glob("runs/*/eval.json")
        return seconds, json.loads(evaluation.read_text())["mean"]


def measure(repeats: int) -> dict[str, Any]:
    """Measure cold and warm starts alternately; each cold start fills a new cache for the warm one after it."""
    seconds: dict[str, list[float]] = {name: [] for name in TARGETS}
    returns: dict[str, list[float]] = {name: [] for name in TARGETS}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            for name in TARGETS:
                took, mean = timed(Path(cache))
                assert mean >= SOLVED, f"a mean return of {mean} is not CartPole solved"
                seconds[name].append(took)
                returns[name].append(mean)
    return {"command": ["rlkit", *COMMAND], "seconds": seconds, "mean_return": returns, "made": report.provenance()}


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for name, target in TARGETS.items():
        seconds = results["seconds"][name]
        median = statistics.median(seconds)
        span = f"{min(seconds):.1f} to {max(seconds):.1f}"
        least = f"{min(results['mean_return'][name]):.1f}"
        rows.append([name, f"{median:.1f}", span, f"< {target:g} {report.verdict(median < target)}", least])
    header = ["compilation cache", "seconds, median", "least to greatest", "target", "least mean return"]
    return (
        "# From the command line to a solved CartPole\n\n"
        f"`{' '.join(results['command'])}`, the whole process: imports, compilation, training, checkpoints, greedy "
        "evaluation of 128 episodes, a learning curve. Python's files have been read before: the disk is warm.\n\n"
        + report.table(header, rows)
        + f"\n{report.provenance_line(results['made'])}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="cold and warm starts (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where startup.json and startup.md go")
    options = parser.parse_args()
    results = measure(options.repeats)
    report.write(options.results, "startup", results, render)


if __name__ == "__main__":
    main()

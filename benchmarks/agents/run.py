"""Training speed of DQN on CartPole-v1 and SAC on Pendulum-v1, against rejax 0.1.3.

Each library trains in a process of its own and waits while the other one works; rounds alternate, as in ppo/run.py. The
time is that of a whole training, environment and gradient steps, as one compiled program, without its compilation.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
TARGET = 1.5  # times rejax's steps per second
ITERATIONS = {"DQN on CartPole-v1": 5000, "SAC on Pendulum-v1": 1500}  # of a round: seconds on two cores


def start(library: str, python: Path) -> Worker:
    """Start the process of one library, without a compilation cache."""
    script = HERE / "worker.py"
    return Worker(library, [python, script, library], {"JAX_ENABLE_COMPILATION_CACHE": "false"})


def measure(peers: list[Worker], task: str, *, rounds: int) -> dict[str, Any]:
    """Measure both libraries on one task."""
    iterations = ITERATIONS[task]
    compiled = {peer.name: peer.call("compile", task, iterations)["seconds"] for peer in peers}
    runs: dict[str, list[float]] = {peer.name: [] for peer in peers}
    steps = iterations * worker.TASKS[task].num_envs
    for seed in range(rounds + 1):
        for peer in peers:
            finished = peer.call("run", seed)
            assert finished["steps"] == steps, f"{peer.name} made {finished['steps']} steps, not {steps}"
            if seed:  # the first round warms up
                runs[peer.name].append(finished["seconds"])
    return {
        "steps": steps,
        "task": worker.TASKS[task]._asdict(),
        "steps_per_second": {name: steps / statistics.median(seconds) for name, seconds in runs.items()},
        "seconds": runs,
        "compile_seconds": compiled,
        "ratio": report.ratio(runs["rejax"], runs["rlkit"]),
        "made": report.provenance() | {"versions": {peer.name: peer.versions for peer in peers}},
    }


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for name, result in results.items():
        task, ratio = result["task"], result["ratio"]
        rows.append(
            [
                name,
                f"{task['num_envs']} envs, {task['gradient_steps']} gradient steps of {task['batch_size']}",
                *(f"{result['steps_per_second'][library]:,.0f}" for library in ("rlkit", "rejax")),
                report.spread(ratio),
                f">= {TARGET} {report.verdict(ratio['median'] >= TARGET)}",
                *(f"{result['compile_seconds'][library]:.1f}" for library in ("rlkit", "rejax")),
            ]
        )
    header = ["task", "an iteration", "rlkit steps/s", "rejax steps/s", "ratio", "target"]
    header += ["rlkit compile s", "rejax compile s"]
    return (
        "# Off-policy agents against rejax\n\n"
        "Equal networks (2x64 relu), buffers, batches, gradient steps and target updates. Medians over alternating "
        "rounds; ratios of the medians, with the least and the greatest ratio of a round.\n\n"
        + report.table(header, rows)
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds a task (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/rejax")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where agents.json and agents.md go")
    options = parser.parse_args()
    python = options.peer_python or peers.python(options.peer_env, peers.REJAX)
    results = report.read(options.results, "agents")
    with start("rlkit", Path(sys.executable)) as ours, start("rejax", python) as theirs:
        for task in worker.TASKS:
            results[task] = measure([ours, theirs], task, rounds=options.rounds)
            report.write(options.results, "agents", results, render)


if __name__ == "__main__":
    main()

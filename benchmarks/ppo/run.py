"""Training speed and compile time of PPO on CartPole-v1, against rejax 0.1.3.

Each library trains in a process of its own and waits while the other one works; rounds alternate. The time is that of a
whole training, rollouts and updates, as one compiled program, without its compilation. rejax's training has no metrics,
so its compile time is compared with that of rlkit without metrics; the ratio with metrics is in a column of its own.
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
SPEED_TARGET = {4: 1.15, 64: 2.0, 2048: 2.2}  # times rejax's steps per second
COMPILE_TARGET = 0.65  # of rejax's compile time
STEPS = 300_000  # of a round, about: one to two seconds on two cores


def start(library: str, python: Path) -> Worker:
    """Start the process of one library, without a compilation cache."""
    script = HERE / "worker.py"
    return Worker(library, [python, script, library], {"JAX_ENABLE_COMPILATION_CACHE": "false"})


def measure(peers: list[Worker], bare: Worker, num_envs: int, *, rounds: int, compilations: int) -> dict[str, Any]:
    """Measure both libraries at one size; `bare` is rlkit without metrics, which is only compiled."""
    batch = num_envs * worker.NUM_STEPS
    updates = max(2, STEPS // batch)
    compiled: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in (*peers, bare)}
    for _ in range(compilations):
        for peer in (*peers, bare):
            compiled[peer.name].append(peer.call("compile", num_envs, updates))
    runs: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for seed in range(rounds + 1):
        for peer in peers:
            finished = peer.call("run", seed)
            assert finished["steps"] == updates * batch, (
                f"{peer.name} made {finished['steps']} steps, not {updates * batch}"
            )
            if seed:  # the first round warms up
                runs[peer.name].append(finished["seconds"])
    result = {
        library: {
            "steps_per_second": updates * batch / statistics.median(seconds),
            "seconds": seconds,
            "compile_seconds": statistics.median(one["seconds"] for one in compiled[library]),
            "compilations": compiled[library],
        }
        for library, seconds in runs.items()
    }
    ours, plain, theirs = ([one["seconds"] for one in compiled[name]] for name in ("rlkit", "bare", "rejax"))
    return {
        "steps": updates * batch,
        **result,
        "speed_ratio": report.ratio(runs["rejax"], runs["rlkit"]),
        "bare": {"compile_seconds": statistics.median(plain), "compilations": compiled["bare"]},
        "compile_ratio": report.ratio(plain, theirs),
        "compile_ratio_with_metrics": report.ratio(ours, theirs),
        "made": report.provenance() | {"versions": {peer.name: peer.versions for peer in peers}},
    }


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for size, measured in sorted(results.items(), key=lambda item: int(item[0])):
        speed, compilation, target = measured["speed_ratio"], measured["compile_ratio"], SPEED_TARGET.get(int(size))
        rows.append(
            [
                size,
                *(f"{measured[library]['steps_per_second']:,.0f}" for library in ("rlkit", "rejax")),
                report.spread(speed),
                "" if target is None else f">= {target} {report.verdict(speed['median'] >= target)}",
                *(f"{measured[library]['compile_seconds']:.1f}" for library in ("bare", "rejax")),
                report.spread(compilation),
                f"<= {COMPILE_TARGET} {report.verdict(compilation['median'] <= COMPILE_TARGET)}",
                report.spread(measured["compile_ratio_with_metrics"]),
            ]
        )
    header = ["envs", "rlkit steps/s", "rejax steps/s", "ratio", "target"]
    header += ["rlkit compile s", "rejax compile s", "ratio", "target", "ratio with metrics"]
    return (
        "# PPO on CartPole-v1 against rejax\n\n"
        f"{worker.NUM_STEPS} steps, {worker.NUM_EPOCHS} epochs, {worker.NUM_MINIBATCHES} minibatches, "
        "separate 2x64 tanh networks. Medians over alternating rounds; ratios of the medians, with the least and the "
        "greatest ratio of a round. Compile time is that of tracing, lowering and compiling the whole training, "
        "without a cache. rejax has no metrics: rlkit runs with its metrics and is compiled without them, and the last "
        "column has the ratio of compile times with them.\n\n"
        + report.table(header, rows)
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=sorted(SPEED_TARGET), help="sizes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="timed rounds a size (%(default)s)")
    parser.add_argument("--compilations", type=int, default=9, help="of each library a size (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/rejax")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where ppo.json and ppo.md go")
    options = parser.parse_args()
    python = options.peer_python or peers.python(options.peer_env, peers.REJAX)
    results = report.read(options.results, "ppo")
    own = Path(sys.executable)
    with start("rlkit", own) as ours, start("bare", own) as bare, start("rejax", python) as theirs:
        assert theirs.versions["rejax"] == peers.REJAX["rejax"], f"{python} has rejax {theirs.versions['rejax']}"
        for num_envs in options.envs:
            results[str(num_envs)] = measure(
                [ours, theirs], bare, num_envs, rounds=options.rounds, compilations=options.compilations
            )
            report.write(options.results, "ppo", results, render)


if __name__ == "__main__":
    main()

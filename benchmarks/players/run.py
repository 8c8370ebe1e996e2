"""IPPO beside JaxMARL's own scripts, and AlphaZero beside pgx's example: steps a second and returns, equal settings.

All are run by the same interpreter, which has jaxmarl, pgx, mctx, distrax, dm-haiku, hydra-core and omegaconf. The
scripts are those of checkouts of the two repositories, `--jaxmarl` and `--pgx`. Each library trains in a process of its
own and waits while the other one works; rounds alternate, each with another seed.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import worker

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
TARGETS = {"simple_spread": 1.2, "smax_3m": 1.2, "connect_four": 1.0}  # times the peer's steps per second
UPDATES = {"simple_spread": 490, "smax_3m": 6, "connect_four": 4}  # of a round: 1,003,520, 98,304 and 16,384 steps


def measure(ours: Worker, theirs: Worker, case: str, updates: int, rounds: int) -> dict[str, Any]:
    """Measure both libraries in one case."""
    compiled = {peer.name: peer.call("compile", case, updates)["seconds"] for peer in (ours, theirs)}
    runs: dict[str, list[dict[str, float]]] = {peer.name: [] for peer in (ours, theirs)}
    for seed in range(rounds + 1):
        for peer in (ours, theirs):
            finished = peer.call("run", seed)
            if seed:  # the first round warms up
                runs[peer.name].append(finished)
    seconds = {name: [one["seconds"] for one in results] for name, results in runs.items()}
    return {
        "steps": runs["rlkit"][0]["steps"],
        "runs": runs,
        "compile_seconds": compiled,
        "ratio": report.ratio(seconds["peer"], seconds["rlkit"]),
        "made": report.provenance() | {"versions": {peer.name: peer.versions for peer in (ours, theirs)}},
    }


def _returns(runs: list[dict[str, float]]) -> str:
    values = [one["return"] for one in runs if one["return"] is not None]
    if not values:
        return ""
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for case, measured in sorted(results.items()):
        target, ratio = TARGETS[case], measured["ratio"]
        speed = {
            name: measured["steps"] / statistics.median(one["seconds"] for one in runs)
            for name, runs in measured["runs"].items()
        }
        rows.append(
            [
                case,
                *(f"{speed[name]:,.0f}" for name in ("rlkit", "peer")),
                report.spread(ratio),
                f">= {target} {report.verdict(ratio['median'] >= target)}",
                *(f"{measured['compile_seconds'][name]:.1f}" for name in ("rlkit", "peer")),
                f"{measured['steps']:,}",
                *(_returns(measured["runs"][name]) for name in ("rlkit", "peer")),
            ]
        )
    header = ["case", "rlkit steps/s", "peer's steps/s", "ratio", "target", "rlkit compile s", "peer's compile s"]
    header += ["steps of a round", "return, rlkit", "return, peer"]
    return (
        "# Several players beside JaxMARL and pgx\n\n"
        "Steps are of worlds. simple_spread and smax_3m: IPPO, beside the script of JaxMARL's repository, with "
        "the settings of its configs: 16 worlds of three players, 2 x 64 tanh; and 128 worlds of three, a dense "
        "layer, a GRU and a hidden layer in each head, of 128; 128 steps, 4 epochs, 4 minibatches. connect_four: "
        "AlphaZero beside the example of pgx's repository, 128 games x 32 moves, 32 simulations, two residual "
        "blocks of 32 channels; the heads differ. Medians over alternating rounds, each with another seed; the "
        "ratio is that of the medians, with the least and the greatest ratio of a round. The peer's compile time "
        "in connect_four is that of its first iteration. Returns are a player's, while exploring, over the last "
        "tenth of the updates: mean over the seeds (least to greatest). Those of simple_spread's peer are means "
        "over all steps, in which an episode counts until the next one ends.\n\n"
        + report.table(header, rows)
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jaxmarl", type=Path, help="a checkout of JaxMARL's repository, for simple_spread and smax_3m"
    )
    parser.add_argument("--pgx", type=Path, help="a checkout of pgx's repository, for connect_four")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="an interpreter that has all")
    parser.add_argument("--cases", nargs="+", default=list(UPDATES), choices=list(UPDATES))
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds a case (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where players.json and players.md go")
    options = parser.parse_args()
    results = report.read(options.results, "players")
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    for case in options.cases:
        checkout = options.pgx if case in worker.GAME else options.jaxmarl
        if checkout is None:
            print(f"{case} is left out, as there is no checkout of its peer", file=sys.stderr)
            continue
        peer = ["pgx_worker.py"] if case in worker.GAME else ["worker.py", "jaxmarl"]
        with (
            Worker("rlkit", [options.python, HERE / "worker.py", "rlkit"], environment) as ours,
            Worker("peer", [options.python, HERE / peer[0], *peer[1:], checkout], environment) as theirs,
        ):
            results[case] = measure(ours, theirs, case, UPDATES[case], options.rounds)
        report.write(options.results, "players", results, render)


if __name__ == "__main__":
    main()

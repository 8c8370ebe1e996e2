"""Value-based agents side by side on a MinAtar game, beside rejax's: returns over steps, of every seed, in one plot.

The rows are rlkit's configs, and rejax 0.1.3's DQN and PQN with the same number of steps and, where rejax has them, the
settings of rlkit's config; rejax has the same networks for every task. Rows can be made one at a time.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import load_config, metrics, train

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
GAME, STEPS, SEEDS, POINTS, EPISODES = "Breakout", 1_000_000, 3, 10, 128


class Row(NamedTuple):
    """A line of the table and of the plot."""

    library: str
    config: str  # of rlkit, or the name of rejax's algorithm
    overrides: Mapping[str, Any]
    color: str


ROWS = {
    "DQN": Row("rlkit", "dqn/{game}_minatar", {}, "#1f77b4"),
    "DQN, priorities": Row("rlkit", "dqn/{game}_minatar", {"replay": "prioritized"}, "#17a2b8"),
    "Rainbow": Row("rlkit", "dqn/rainbow_{game}_minatar", {}, "#d62728"),
    "C51": Row("rlkit", "c51/{game}_minatar", {}, "#ff7f0e"),
    "IQN": Row("rlkit", "iqn/{game}_minatar", {}, "#9467bd"),
    "PQN": Row("rlkit", "pqn/{game}_minatar", {}, "#2ca02c"),
    "rejax DQN": Row("rejax", "dqn", {}, "#7f7f7f"),
    "rejax PQN": Row("rejax", "pqn", {}, "#b5a642"),
}


def train_rlkit(row: Row, game: str, steps: int, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed of rlkit: greedy returns at POINTS steps, the last of the final parameters, and seconds."""
    keys = {"seed": seed, "total_steps": steps, "eval_every": steps // POINTS, "eval_episodes": EPISODES}
    begin = time.perf_counter()
    trained = train(load_config(row.config.format(game=game), {**row.overrides, **keys}), out=folder, show=False)
    seconds = time.perf_counter() - begin
    if trained.evaluation is None:
        raise SystemExit(1)
    lines = [line for line in metrics.read(folder) if line.get("eval_return_mean") is not None]
    points = [[line["step"], line["eval_return_mean"]] for line in lines]
    points = [point for point in points if point[0] < trained.evaluation["step"]]
    points.append([trained.evaluation["step"], trained.evaluation["mean"]])
    return {"points": points, "seconds": seconds}


def train_rejax(row: Row, game: str, steps: int, seed: int, python: Path) -> dict[str, Any]:
    worker = HERE / "rejax_worker.py"
    with Worker("rejax", [python, worker], {"JAX_PLATFORMS": "cpu"}) as process:
        return process.call("train", row.config, f"{game}-MinAtar", steps, steps // POINTS, EPISODES, seed)


def line(label: str, result: Mapping[str, Any]) -> list[str]:
    last = [seed["points"][-1][1] for seed in result["seeds"]]
    center = float(iqm(np.asarray(last, np.float32)))
    low, high = (float(end) for end in iqm_interval(np.asarray(last, np.float32), jax.random.key(0)))
    seconds = statistics.median(seed["seconds"] for seed in result["seeds"])
    return [
        label,
        f"{result['seeds'][0]['points'][-1][0]:,}",
        ", ".join(f"{x:.1f}" for x in last),
        f"{statistics.mean(last):.1f}",
        f"{center:.1f} [{low:.1f}, {high:.1f}]",
        f"{seconds:.0f}",
    ]


def render(results: Mapping[str, Any]) -> str:
    made = sorted({report.provenance_line(result["made"]) for result in results.values()})
    rows = [line(label, results[label]) for label in ROWS if label in results]
    header = ["agent", "steps", "return of each seed", "mean", "IQM [95% interval]", "seconds a seed"]
    return (
        f"# {GAME}-MinAtar, value-based agents\n\n"
        f"Greedy returns of the final parameters, {EPISODES} episodes of each seed from 0 on, none chosen; rejax acts "
        "at random in 0.5% of the steps, as its `act` does. rejax's networks are layers of 64 and 64 on the pixels. "
        "Seconds are of a whole run on shared cores: compilation, training, and 10 evaluations.\n\n"
        "![Returns over steps](minatar.png)\n\n" + report.table(header, rows) + "\n" + "\n".join(made) + "\n"
    )


def draw(results: Mapping[str, Any], target: Path) -> None:
    """Draw means over seeds, and the range between them."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    for label, row in ROWS.items():
        if label not in results:
            continue
        points = np.array([seed["points"] for seed in results[label]["seeds"]])  # [S, P, 2]
        steps, returns = points[0, :, 0], points[..., 1]
        style = "--" if row.library != "rlkit" else "-"
        axes.plot(steps, returns.mean(0), style, color=row.color, linewidth=1.8, label=label)
        axes.fill_between(steps, returns.min(0), returns.max(0), color=row.color, alpha=0.12, linewidth=0)
    axes.set_title(f"{GAME}-MinAtar: mean greedy return and range over seeds", fontsize=10, loc="left")
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(target, dpi=130)


def seeds_of(row: Row, game: str, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    if row.library == "rejax":
        return [
            train_rejax(row, game.title(), options.steps, seed, options.peer_python) for seed in range(options.seeds)
        ]
    with tempfile.TemporaryDirectory() as folder:
        return [train_rlkit(row, game, options.steps, seed, Path(folder) / str(seed)) for seed in range(options.seeds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"some of {', '.join(ROWS)} (all)")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/rejax")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where minatar.json, .md and .png go")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}; the rows are {'; '.join(ROWS)}")
    rows = {label: ROWS[label] for label in options.rows or ROWS}
    if any(row.library == "rejax" for row in rows.values()) and options.peer_python is None:
        options.peer_python = peers.python(options.peer_env, peers.REJAX)
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # one compilation for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        for label, row in rows.items():
            seeds = seeds_of(row, GAME.lower(), options)
            print(label, [seed["points"][-1] for seed in seeds], file=sys.stderr)
            results = report.read(options.results, "minatar") | {label: {"seeds": seeds, "made": report.provenance()}}
            report.write(options.results, "minatar", results, render)
            draw(results, options.results / "minatar.png")
            jax.clear_caches()


if __name__ == "__main__":
    main()

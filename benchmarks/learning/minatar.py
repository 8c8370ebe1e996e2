"""Leaderboard of agents on four MinAtar games, beside rejax's: greedy returns of every seed, in a table and plots.

The rows are rlkit's configs, and rejax 0.1.3's DQN and PQN with the same number of steps and, where rejax has them, the
settings of rlkit's config; rejax has the same networks for every task. A row without a config of its own for a game
takes that of Breakout. Each seed is written to minatar.json as it ends, and is not trained again when the program is
started the next time. Machines and processes that share the work have `--results` folders of their own, and
`--merge FOLDER ...` brings their seeds together.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
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
CONFIGS = HERE.parents[1] / "configs"
GAMES = {"Asterix": "asterix", "Breakout": "breakout", "Freeway": "freeway", "SpaceInvaders": "spaceinvaders"}
STEPS, SEEDS, POINTS, EPISODES = 1_000_000, 5, 10, 128
REFERENCE = "PPO"  # the row whose mean return on a game is a score of 1


class Row(NamedTuple):
    """A line of the tables and of the plots."""

    library: str
    config: str  # of rlkit, or the name of rejax's algorithm
    overrides: Mapping[str, Any]
    color: str


ROWS = {
    "PPO": Row("rlkit", "ppo/{game}_minatar", {}, "#111111"),
    "PQN": Row("rlkit", "pqn/breakout_minatar", {}, "#2ca02c"),
    "DQN": Row("rlkit", "dqn/{game}_minatar", {}, "#1f77b4"),
    "DQN, priorities": Row("rlkit", "dqn/{game}_minatar", {"replay": "prioritized"}, "#17a2b8"),
    "C51": Row("rlkit", "c51/{game}_minatar", {}, "#ff7f0e"),
    "QR-DQN": Row("rlkit", "qrdqn/{game}_minatar", {}, "#e377c2"),
    "Rainbow": Row("rlkit", "dqn/rainbow_{game}_minatar", {}, "#d62728"),
    "IQN": Row("rlkit", "iqn/{game}_minatar", {}, "#9467bd"),
    "R2D2": Row("rlkit", "r2d2/{game}_minatar", {}, "#8c564b"),
    "SAC": Row("rlkit", "sac/{game}_minatar", {}, "#7bc8a4"),
    "rejax PQN": Row("rejax", "pqn", {}, "#b5a642"),
    "rejax DQN": Row("rejax", "dqn", {}, "#7f7f7f"),
}

Results = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]  # seeds, by game and row


def config_of(row: Row, game: str) -> str:
    """The name of the config of a row of rlkit's for a game: that of Breakout, where the game has none."""
    name = row.config.format(game=GAMES[game])
    return name if (CONFIGS / f"{name}.yaml").exists() else row.config.format(game=GAMES["Breakout"])


def train_rlkit(row: Row, game: str, steps: int, seeds: range) -> list[dict[str, Any]]:
    """Train seeds of rlkit in one program: of each, greedy returns at POINTS steps, the last of the final parameters,
    and the seconds of all."""
    keys = {"env": f"{game}-MinAtar", "seed": seeds[0], "num_seeds": len(seeds), "total_steps": steps}
    keys |= {"eval_every": steps // POINTS, "eval_episodes": EPISODES}
    config = load_config(config_of(row, game), {**row.overrides, **keys})
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        trained = train(config, out=Path(folder), show=False)
        seconds = time.perf_counter() - begin
        if trained.evaluation is None:
            raise SystemExit(1)
        lines = [line for line in metrics.read(Path(folder)) if line.get("eval_return_mean") is not None]
    end = trained.evaluation["step"]
    points = [(line["step"], np.atleast_1d(line["eval_return_mean"])) for line in lines if line["step"] < end]
    points.append((end, np.array(trained.evaluation["mean_of_seed"])))
    return [
        {"points": [[step, float(means[i])] for step, means in points], "seconds": seconds} for i in range(len(seeds))
    ]


def train_rejax(row: Row, game: str, steps: int, seed: int, python: Path) -> dict[str, Any]:
    worker = HERE / "rejax_worker.py"
    with Worker("rejax", [python, worker], {"JAX_PLATFORMS": "cpu"}) as process:
        return process.call("train", row.config, f"{game}-MinAtar", steps, steps // POINTS, EPISODES, seed)


def final(seeds: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The last return of each seed, [S]."""
    return np.array([seed["points"][-1][1] for seed in seeds], np.float32)


def scores(results: Results) -> dict[str, np.ndarray]:
    """Final returns over the mean of `REFERENCE` on the same game, [seeds, games], of the rows with as many seeds."""
    references = {game: final(results[game][REFERENCE]) for game in GAMES if REFERENCE in results.get(game, {})}
    table = {}
    for label in ROWS:
        rows = [final(results[game].get(label, ())) / references[game].mean() for game in references]
        if len(rows) == len(GAMES) and min(map(len, rows)) >= min(map(len, references.values())):
            count = min(map(len, rows))
            table[label] = np.stack([row[:count] for row in rows], axis=1)
    return table


def interval(values: np.ndarray, digits: int) -> str:
    """The interquartile mean and its interval, as text."""
    low, high = (float(end) for end in iqm_interval(values, jax.random.key(0)))
    return f"{float(iqm(values)):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def leaderboard(results: Results) -> str:
    """The table of all games together."""
    table = scores(results)
    waiting = "; ".join(label for label in ROWS if label not in table)
    unfinished = (
        f"\nNot trained with all seeds on all games yet, and so without a score over all: {waiting}.\n"
        if waiting
        else ""
    )
    if not table:
        return unfinished.lstrip()
    order = sorted(table, key=lambda label: -float(iqm(table[label])))
    rows = [[label, len(table[label]), interval(table[label], 2), f"{np.median(table[label]):.2f}"] for label in order]
    return (
        "## All games\n\nA score is a return over the mean return of PPO on the same game. The interval is a "
        "stratified bootstrap over seeds (Agarwal et al. 2021), in which PPO's mean is taken as exact: it compares "
        "agents with each other.\n\n"
        + report.table(["agent", "seeds a game", "IQM [95% interval]", "median"], rows)
        + "\n![Performance profiles](minatar_profiles.png)\n"
        + unfinished
    )


def line(label: str, game: str, seeds: Sequence[Mapping[str, Any]]) -> list[str]:
    last, row = final(seeds), ROWS[label]
    return [
        f"[{label}](../../configs/{config_of(row, game)}.yaml)" if row.library == "rlkit" else label,
        f"{seeds[0]['points'][-1][0]:,}",
        ", ".join(f"{x:.1f}" for x in last),
        f"{last.mean():.1f}",
        interval(last, 1) + (" (range)" if len(last) <= 3 else ""),
    ]


def render(results: Results) -> str:
    header = ["agent", "steps", "return of each seed", "mean", "IQM [95% interval]"]
    text = (
        "# MinAtar\n\n"
        f"Greedy returns of the final parameters, {EPISODES} episodes of each seed from 0 on, none chosen; rejax acts "
        "at random in 0.5% of the steps, as its `act` does. rejax's networks are layers of 64 and 64 on the pixels, "
        "DQN's with swish. "
        "Settings were chosen on Breakout; those of PPO on each game, and DQN's `n_step` on Asterix and Freeway too, "
        "which the other agents with replay take over. On Freeway it was changed after two of the seeds 0 to 4 were "
        "seen: with three steps, seeds 0 and 1 ended at 43.3 and 2.2, and are left out; with one, seed 10 had 46.9 "
        "after 700,000 steps (16 episodes). On SpaceInvaders, C51 and Rainbow have a wider support. Seeds of one row "
        "may be of different machines and versions; minatar.json has those of each.\n\n"
        + leaderboard(results)
        + "\n![Returns over steps](minatar.png)\n"
    )
    for game in (game for game in GAMES if game in results):
        rows = [line(label, game, results[game][label]) for label in ROWS if label in results[game]]
        text += f"\n## {game}\n\n" + report.table(header, rows)
    made = {machine_line(seed["made"]) for rows in results.values() for row in rows.values() for seed in row}
    return text + "\n" + "\n".join(sorted(made)) + "\n"


def machine_line(made: Mapping[str, Any]) -> str:
    """A line of the machine and the versions of a seed."""
    device = made.get("device", "cpu")  # of early results, which have none, all are of a CPU
    return ("" if device == "cpu" else f"1 x {device}; ") + report.provenance_line(made)


def draw(results: Results, folder: Path) -> None:
    """Draw returns over steps by game, means over seeds and the range between them, and performance profiles."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    def finish(axes: Any, title: str, x: str, y: str) -> None:
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)

    figure, panels = plt.subplots(2, 2, figsize=(10, 7.5), constrained_layout=True)
    handles = {}
    for game, axes in zip(GAMES, panels.flat, strict=True):
        axes.set_visible(game in results)
        for label, row in ROWS.items():
            if label not in results.get(game, {}):
                continue
            points = np.array([seed["points"] for seed in results[game][label]])  # [S, P, 2]
            steps, returns = points[0, :, 0], points[..., 1]
            style = "--" if row.library != "rlkit" else "-"
            (handles[label],) = axes.plot(steps, returns.mean(0), style, color=row.color, linewidth=1.8)
            axes.fill_between(steps, returns.min(0), returns.max(0), color=row.color, alpha=0.12, linewidth=0)
        finish(axes, f"{game}: mean greedy return, range over seeds", "environment steps", "return")
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(folder / "minatar.png", dpi=130)
    plt.close(figure)

    table = scores(results)
    if not table:
        return
    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    thresholds = np.linspace(0, max(float(values.max()) for values in table.values()), 200)
    for label, values in table.items():
        share = (values[..., None] > thresholds).mean((0, 1))
        style = "--" if ROWS[label].library != "rlkit" else "-"
        axes.step(thresholds, share, style, where="post", color=ROWS[label].color, linewidth=1.8, label=label)
    finish(axes, "Performance profiles over four games", "score (1: PPO's mean)", "share of runs above the score")
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(folder / "minatar_profiles.png", dpi=130)
    plt.close(figure)


def by_number(seeds: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """A row's seeds by their number; where none was written, it is the place."""
    return {seed.get("seed", place): seed for place, seed in enumerate(seeds)}


def require_steps(label: str, game: str, steps: int, seeds: Iterable[Mapping[str, Any]]) -> None:
    """Exit where seeds of a row were trained for another number of steps than its next ones."""
    others = {seed["points"][-1][0] for seed in seeds}
    if any(abs(other - steps) > steps / POINTS for other in others):
        numbers = ", ".join(f"{other:,}" for other in sorted(others))
        raise SystemExit(f"{label} has seeds of {numbers} steps on {game}; give --results another folder")


def merge(results: dict[str, Any], folders: Sequence[Path]) -> None:
    """Add the seeds of other folders that are not there."""
    for folder in folders:
        for game, rows in report.read(folder, "minatar").items():
            for label, seeds in rows.items():
                there = by_number(seeds) | by_number(results.get(game, {}).get(label, []))
                results.setdefault(game, {})[label] = [there[seed] for seed in sorted(there)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help=f"some of {', '.join(ROWS)} (all)")
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES, help="(all)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each row and game (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first seed to train (%(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of a run (%(default)s)")
    parser.add_argument("--again", action="store_true", help="train the seeds again that are there")
    parser.add_argument("--together", action="store_true", help="rlkit's seeds in one program, as a GPU is fast with")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/rejax")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where minatar.json, .md and .png go")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="FOLDER", help="add the seeds of other results folders; trains none"
    )
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        raise SystemExit(f"no row is called {', '.join(sorted(unknown))}; the rows are {'; '.join(ROWS)}")
    labels = [label for label in ROWS if label in (options.rows or ROWS)] if options.merge is None else []
    if any(ROWS[label].library == "rejax" for label in labels) and options.peer_python is None:
        options.peer_python = peers.python(options.peer_env, peers.REJAX)
    results = report.read(options.results, "minatar")
    merge(results, options.merge or [])
    with tempfile.TemporaryDirectory() as cache:
        jax.config.update("jax_compilation_cache_dir", cache)  # one compilation for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        for label in labels:
            for game in options.games:
                there = by_number(results.get(game, {}).get(label, []))
                require_steps(label, game, options.steps, there.values())
                done = set() if options.again else set(there)
                while missing := [seed for seed in range(options.first, options.seeds) if seed not in done]:
                    first, number, made = missing[0], 1, report.provenance()
                    if ROWS[label].library == "rejax":
                        trained = [train_rejax(ROWS[label], game, options.steps, first, options.peer_python)]
                    else:
                        if options.together:
                            number = sum(seed == first + i for i, seed in enumerate(missing))
                        trained = train_rlkit(ROWS[label], game, options.steps, range(first, first + number))
                        made["device"] = jax.devices()[0].device_kind
                    new = {first + i: {**one, "seed": first + i, "made": made} for i, one in enumerate(trained)}
                    there, done = there | new, done | set(new)
                    seeds = [there[seed] for seed in sorted(there)]
                    print(label, game, [seed["points"][-1] for seed in seeds], file=sys.stderr)
                    results.setdefault(game, {})[label] = seeds
                    report.write(options.results, "minatar", results, render)
                    draw(results, options.results)
                jax.clear_caches()
        report.write(options.results, "minatar", results, render)
        draw(results, options.results)


if __name__ == "__main__":
    main()

"""Greedy returns of the final parameters of each config, with every seed counted and none chosen.

Each seed is trained as by `rlkit train`. Results are stored by row, so that configs can be trained one at a time.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import load_config, train
from rlkit.runs.config.strict_yaml import parse

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
SEEDS, MINATAR_SEEDS, MUJOCO_SEEDS, ATARI_SEEDS = 10, 3, 3, 1
STEPS = {"total_steps": 100_000}  # of a row of MuJoCo, which stands for the million of its config
SIMBA_V2 = "in SimbaV2's repository, ten seeds of v4"
WALKER = {"env": "gymnasium:Walker2d-v5"}
PICTURES = {"env": "painted:Pendulum", "wrappers": ["frame_stack:3"], "total_steps": 8_000}
PICTURES |= {"encoder": "conv", "channels": [16, 16], "kernels": [4, 4], "strides": [2, 2]}
EPISODES = 128  # of each seed's evaluation, unless a config says otherwise


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: a config, the keys that are changed in it, and its target."""

    config: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mean: float | None = None  # over seeds, at least
    least: float | None = None  # of every seed, at least
    below: float | None = None  # mean over seeds, for settings that are meant to fail
    note: str = ""
    seeds: int = SEEDS

    def target(self) -> str:
        parts = [f"mean >= {self.mean:g}"] if self.mean is not None else []
        parts += [f"every seed >= {self.least:g}"] if self.least is not None else []
        parts += [f"mean < {self.below:g}"] if self.below is not None else []
        return ", ".join(parts)

    def met(self, scores: Sequence[float]) -> bool | None:
        """True if the target is met; None if there is none."""
        mean = statistics.mean(scores)
        checks = [mean >= self.mean] if self.mean is not None else []
        checks += [min(scores) >= self.least] if self.least is not None else []
        checks += [mean < self.below] if self.below is not None else []
        return all(checks) if checks else None


def _minatar(config: str, note: str = "") -> Row:
    return Row(f"{config}_minatar", seeds=MINATAR_SEEDS, note=note)


ROWS = {
    "ppo/cartpole": Row("ppo/cartpole", mean=500, note="rl_zoo3: 500; PureJaxRL, 4 envs, 125k steps: 355"),
    "ppo/acrobot": Row("ppo/acrobot", mean=-90),
    "ppo/acrobot, 500k steps": Row("ppo/acrobot", {"total_steps": 500_000}, mean=-112, note="PureJaxRL: -112"),
    "ppo/mountain_car": Row("ppo/mountain_car", mean=-110.4, note="rl_zoo3: -110.4"),
    "ppo/mountain_car_continuous": Row("ppo/mountain_car_continuous", mean=90),
    "ppo/pendulum": Row("ppo/pendulum", mean=-250),
    "ppo/cartpole_no_velocity": Row("ppo/cartpole_no_velocity", mean=450),
    "ppo/cartpole_no_velocity, 100k steps": Row("ppo/cartpole_no_velocity", {"total_steps": 100_000}),
    "ppo/cartpole_no_velocity, feed-forward": Row(
        "ppo/cartpole_no_velocity", {"recurrent": "none"}, below=200, note="the same task, feed-forward"
    ),
    "ppo/breakout_minatar": _minatar("ppo/breakout", note="PureJaxRL's MLP, 64 envs, 1M steps: 25.6"),
    "ppo/breakout_minatar, 10M steps": Row("ppo/breakout_minatar", {"total_steps": 10_000_000}, seeds=MINATAR_SEEDS),
    "ppo/asterix_minatar": _minatar("ppo/asterix"),
    "ppo/spaceinvaders_minatar": _minatar("ppo/spaceinvaders"),
    "ppo/freeway_minatar": _minatar("ppo/freeway"),
    "ppo/cartpole_gymnasium": Row("ppo/cartpole_gymnasium", mean=475, note="in worker processes"),
    "dqn/cartpole": Row("dqn/cartpole", mean=475, note="rl_zoo3: 500"),
    "dqn/acrobot": Row("dqn/acrobot", mean=-85, note="rl_zoo3: -76.6"),
    "dqn/mountain_car": Row("dqn/mountain_car", mean=-120, note="rl_zoo3: -100.8"),
    "c51/cartpole": Row("c51/cartpole", mean=475),
    "qrdqn/cartpole": Row("qrdqn/cartpole", mean=475, note="rl_zoo3: 500"),
    "qrdqn/acrobot": Row("qrdqn/acrobot", mean=-80, note="rl_zoo3: -69.1"),
    "qrdqn/mountain_car": Row("qrdqn/mountain_car", mean=-105, note="rl_zoo3: -106.0"),
    "iqn/cartpole": Row("iqn/cartpole", mean=475),
    "pqn/cartpole": Row("pqn/cartpole", mean=475, least=475),
    "r2d2/cartpole_no_velocity": Row("r2d2/cartpole_no_velocity", mean=400),
    "sac/pendulum": Row("sac/pendulum", mean=-155, note="rl_zoo3: -157.0"),
    "tqc/pendulum": Row("tqc/pendulum", mean=-155, note="rl_zoo3, one run of 20k steps: -151"),
    "crossq/pendulum": Row("crossq/pendulum", mean=-155),
    "td3/pendulum": Row("td3/pendulum", mean=-155, note="rl_zoo3: -151.9"),
    "ddpg/pendulum": Row("ddpg/pendulum", mean=-250),
    "sac/mountain_car_continuous": Row("sac/mountain_car_continuous", mean=90),
    "sac/mountain_car_continuous, 50k steps": Row(
        "sac/mountain_car_continuous", {"total_steps": 50_000}, note="rl_zoo3: 94.7"
    ),
    "sac/cartpole": Row("sac/cartpole"),
    "sac/pendulum, pictures": Row("sac/pendulum", PICTURES, seeds=3),
    "sac/pendulum, pictures, random_shift 2": Row("sac/pendulum", PICTURES | {"random_shift": 2}, seeds=3),
    "dqn/lunar_lander": Row("dqn/lunar_lander", seeds=3, note="rl_zoo3, v2: 154"),
    "ppo/lunar_lander": Row("ppo/lunar_lander", seeds=3, note="rl_zoo3, v2: 242"),
    "sac/mujoco, 100k steps": Row("sac/mujoco", STEPS, seeds=MUJOCO_SEEDS, note=f"{SIMBA_V2}: 6,156 (4,986 to 7,510)"),
    "td3/mujoco, 100k steps": Row("td3/mujoco", STEPS, seeds=MUJOCO_SEEDS),
    "tqc/mujoco, 100k steps": Row("tqc/mujoco", STEPS, seeds=MUJOCO_SEEDS),
    "crossq/mujoco, 100k steps, critics of 256 units": Row(
        "crossq/mujoco",
        STEPS | {"critic_hidden_sizes": [256, 256]},
        seeds=MUJOCO_SEEDS,
        note=f"{SIMBA_V2}, critics of 2,048 units: 8,112 (5,889 to 8,964)",
    ),
    "sac/mujoco, Walker2d-v5, 100k steps": Row(
        "sac/mujoco", STEPS | WALKER, seeds=MUJOCO_SEEDS, note=f"{SIMBA_V2}: 690 (261 to 1,049)"
    ),
    "crossq/mujoco, Walker2d-v5, 100k steps, critics of 256 units": Row(
        "crossq/mujoco",
        STEPS | WALKER | {"critic_hidden_sizes": [256, 256]},
        seeds=MUJOCO_SEEDS,
        note=f"{SIMBA_V2}, critics of 2,048 units: 3,914 (236 to 5,296)",
    ),
    "ppo/pong_atari, 3.2M steps, 42 x 42 pixels": Row(
        "ppo/pong_atari",
        {"total_steps": 3_200_000, "learning_rate": 5e-4, "env_kwargs": {"fire_reset": True, "screen_size": 42}}
        | {"clip_schedule": "constant"}
        | {"encoder": "conv", "channels": [16, 32], "kernels": [4, 4], "strides": [2, 2], "hidden_sizes": [256]},
        mean=0,
        seeds=ATARI_SEEDS,
        note="-21 at the start",
    ),
    "dqn/breakout_minatar": _minatar("dqn/breakout"),
    "dqn/breakout_minatar, priorities": Row(
        "dqn/breakout_minatar", {"replay": "prioritized"}, seeds=MINATAR_SEEDS, note="the same with priorities"
    ),
    "dqn/rainbow_breakout_minatar": _minatar("dqn/rainbow_breakout"),
    "c51/breakout_minatar": _minatar("c51/breakout"),
    "iqn/breakout_minatar": _minatar("iqn/breakout"),
    "pqn/breakout_minatar": _minatar("pqn/breakout"),
}


def scores_of(row: Row, seeds: range, out: Path, stored: Mapping[str, Any], *, vmap: bool) -> dict[str, Any]:
    """Train seeds of a row, after those stored: the means of their greedy episodes, and the seconds of each.

    With `vmap` all seeds are one program, and each has an equal share of its seconds.
    """
    groups = [(seeds.start, len(seeds))] if vmap else [(seed, 1) for seed in seeds]
    result: dict[str, Any] = {
        "mean_of_seed": [*stored.get("mean_of_seed", [])],
        "seconds": [*stored.get("seconds", [])],
        "unfinished": stored.get("unfinished", 0),
    }
    for first, count in groups:
        config = load_config(row.config, {**row.overrides, "seed": first, "num_seeds": count})
        run = out / (f"{first}" if count == 1 else f"{first}-{first + count - 1}")
        begin = time.perf_counter()
        trained = train(config, out=run, show=False)
        seconds = time.perf_counter() - begin
        if trained.signal is not None:
            raise SystemExit(128 + trained.signal)
        evaluation = json.loads((run / "eval.json").read_text())
        result["mean_of_seed"] += evaluation["mean_of_seed"]
        result["unfinished"] += evaluation["unfinished"]
        result["seconds"] += [seconds / count] * count
        result |= {"env": config.run.env, "wrappers": list(config.run.wrappers), "steps": evaluation["step"]}
        result["episodes"] = config.run.eval_episodes
        print(f"{row.config} seed {first}: {evaluation['mean']} in {seconds:.1f} s", file=sys.stderr)
    assert None not in result["mean_of_seed"], "a seed finished no episode"
    return result


def measure(row: Row, seeds: int, out: Path, stored: Mapping[str, Any], *, vmap: bool) -> dict[str, Any]:
    result = scores_of(row, range(len(stored.get("mean_of_seed", [])), seeds), out, stored, vmap=vmap)
    scores = result["mean_of_seed"]
    table = np.asarray(scores, np.float32)
    return {
        "config": row.config,
        "overrides": dict(row.overrides),
        **result,
        "vmap": vmap,
        "mean": statistics.mean(scores),
        "min": min(scores),
        "iqm": float(iqm(table)),
        "interval": [float(end) for end in iqm_interval(table, jax.random.key(0))],
        "mark": row.target(),
        "met": row.met(scores),
        "note": row.note,
        "made": report.provenance(),
    }


def number(value: float) -> str:
    return f"{value:.1f}"


def line(label: str, result: Mapping[str, Any]) -> list[str]:
    low, high = result["interval"]
    config, comma, changed = label.partition(",")
    notes = [result["note"]] if result["note"] else []
    notes += [f"{result['episodes']} episodes a seed"] if result["episodes"] != EPISODES else []
    notes += [f"{result['unfinished']} episodes cut and not counted"] if result["unfinished"] else []
    return [
        f"[{config}](../../configs/{config}.yaml){comma}{changed}",
        " + ".join([result["env"], *result["wrappers"]]),
        f"{result['steps']:,}",
        str(len(result["mean_of_seed"])),
        number(result["mean"]),
        number(result["min"]),
        f"{number(result['iqm'])} [{number(low)}, {number(high)}]",
        result["mark"],
        report.verdict(result["met"]),
        number(statistics.median(result["seconds"])),
        str(result["made"]["machine"]["cores"]),
        "; ".join(notes),
    ]


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    order = [*(label for label in ROWS if label in results), *(label for label in results if label not in ROWS)]
    header = ["config", "environment", "steps", "seeds", "mean", "least seed", "IQM [95% interval]", "target", ""]
    header += ["seconds a seed", "cores", "note"]
    return (
        "# Returns of the configs\n\n"
        f"Greedy evaluation of the final parameters, {EPISODES} episodes of each seed, seeds 0 and up, no seed and no "
        "checkpoint chosen. The interquartile mean is over the seeds' means, its interval a stratified bootstrap. "
        "Seconds are the median over seeds of a whole run: compilation (from a cache after the first seed), "
        "training, checkpoints and evaluation. Returns of PureJaxRL in the notes are of its own settings and were not "
        "made by this program.\n\n"
        + report.table(header, [line(label, results[label]) for label in order])
        + "\n"
        + report.provenance_lines(result["made"] for result in results.values())
    )


def chosen(options: argparse.Namespace) -> dict[str, Row]:
    """The rows that the command line names, by label."""
    if not options.overrides:
        labels = options.configs or list(ROWS)
        if options.label or not set(labels) <= set(ROWS):
            raise SystemExit(f"the rows are {'; '.join(ROWS)}. For another, give --overrides and --label")
        return {label: ROWS[label] for label in labels}
    if len(options.configs) != 1 or not options.label or options.label in ROWS:
        raise SystemExit("--overrides needs one config, and a --label that no row of the table has")
    name = options.configs[0]
    pairs = (pair.partition("=") for pair in options.overrides.split())
    overrides = {key: parse(text) for key, _, text in pairs}
    seeds = ROWS[name].seeds if name in ROWS else SEEDS
    return {options.label: Row(name, overrides, seeds=seeds)}  # targets are for the unchanged config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help="rows of the table, such as ppo/cartpole (all)")
    parser.add_argument("--seeds", type=int, help=f"seeds of each ({SEEDS}; {MINATAR_SEEDS} for MinAtar)")
    parser.add_argument("--add", action="store_true", help="keep the seeds that a row has; train those from there on")
    parser.add_argument("--vmap", action="store_true", help="all seeds in one program")
    parser.add_argument("--overrides", help="keys of one config, as 'key=value key=value'")
    parser.add_argument("--label", help="the name of the row that --overrides makes")
    parser.add_argument("--out", type=Path, help="keep the run directories here (a temporary directory)")
    parser.add_argument("--results", type=Path, default=HERE, help="where learning.json and learning.md go")
    options = parser.parse_args()
    rows = chosen(options)
    with tempfile.TemporaryDirectory() as temporary:
        jax.config.update("jax_compilation_cache_dir", f"{temporary}/cache")  # one compilation for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        for index, (label, row) in enumerate(rows.items()):
            out = (options.out or Path(temporary)) / f"{index}-{row.config.replace('/', '-')}"
            if out.exists():
                raise SystemExit(f"--out {options.out} has runs of an earlier call; give another folder")
            out.mkdir(parents=True)
            stored = report.read(options.results, "learning").get(label, {}) if options.add else {}
            seeds = options.seeds or row.seeds
            if len(stored.get("mean_of_seed", [])) >= seeds:
                continue
            result = measure(row, seeds, out, stored, vmap=options.vmap)
            results = report.read(options.results, "learning") | {label: result}
            report.write(options.results, "learning", results, render)
            jax.clear_caches()


if __name__ == "__main__":
    main()

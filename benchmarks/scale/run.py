"""Many seeds and many trials on all cores: seeds spread over devices, sweeps, halving; against rejax and rl_zoo3.

Parts, each with results of its own (`--parts`):
  command  `rlkit train ppo/cartpole --seeds 10` on one device and on all
  several  the same and `dqn/cartpole` as two processes, joined by --coordinator, against one with two devices; and what
           a checkpoint costs either
  divided  one run of PPO with the Nature CNN on Atari, on one device and divided over two
  rejax    ten seeds of PPO at 4 and 64 environments, against rejax's ten vmapped seeds
  curve    steps per second of all seeds together, for 1 to 256 seeds on one device and on all; draws scale.png
  sweep    64 trials x 4 seeds of PPO on CartPole, 100k steps each, killed twice; with halving
  zoo      random trials of PPO on CartPole, 100k steps each, by rl_zoo3
"""

import argparse
import csv
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
ZOO = {"rl_zoo3": "2.9.2", "stable_baselines3": "2.9.2", "torch": "2.13.0", "pandas": "3.1.1"}
CURVES = {"ppo": (1, 2, 4, 10, 32, 100, 256), "dqn": (1, 2, 4, 10, 32, 100), "sac": (1, 2, 4, 10)}
UPDATES = {"ppo": 40_000, "dqn": 20_000, "sac": 4_000}  # environment steps of all seeds in a round, about
LARGE = ("--num_envs", 32, "--num_epochs", 4, "--num_minibatches", 4)  # minibatches of 256, which a core takes long for
TARGETS = {"command": 1.7, "rejax": 2.3, "zoo": 10.0, "halving": 0.45}


def start(library: str, python: Path) -> Worker:
    """Start the process of one library, without a compilation cache."""
    return Worker(library, [python, HERE / "worker.py", library], {"JAX_ENABLE_COMPILATION_CACHE": "false"})


def rlkit(*words: Any, cwd: Path, cache: Path, wait: bool = True) -> Any:
    """Run a command of rlkit, or start it."""
    command = [sys.executable, "-m", "rlkit", *map(str, words)]
    environment = os.environ | {"RLKIT_CACHE": str(cache)}
    if not wait:
        return subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done


def command(rounds: int) -> dict[str, Any]:
    """Seconds of training, compilation apart, of ten seeds by the command, as its metric lines have them."""
    seconds: dict[str, list[float]] = {"1": [], "auto": []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(rounds):
            for devices, times in seconds.items():
                out = Path(folder) / f"{devices}-{index}"
                words = ("--seeds", 10, "--total_steps", 200_000, "--devices", devices, "--seed", 100 * index)
                rlkit("train", "ppo/cartpole", *words, *LARGE, "--out", out, cwd=folder, cache=Path(folder) / "cache")
                times.append(json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])["seconds"])
    return {"seconds": seconds, "ratio": report.ratio(seconds["1"], seconds["auto"]), "made": report.provenance()}


def several(rounds: int) -> dict[str, Any]:
    """Ten seeds of two processes with a device each and of one with two: seconds of training, and of a checkpoint.

    The time of a checkpoint is the difference of whole commands with 2 and with 22 of them, in the same round.
    """
    result: dict[str, Any] = {"made": report.provenance()}
    sizes = {"ppo": (("ppo/cartpole", *LARGE), 5_120), "dqn": (("dqn/cartpole",), 256)}
    with tempfile.TemporaryDirectory() as folder:
        for agent, (config, every) in sizes.items():
            words = (*config, "--total_steps", 22 * every, "--log_every", every, "--eval_episodes", 0)
            training: dict[str, list[float]] = {"one": [], "two": []}
            whole: dict[str, dict[str, list[float]]] = {name: {"2": [], "22": []} for name in training}
            for index in range(-1, rounds):  # the first round compiles
                for name, times in training.items():
                    for count, saved in (("2", 22 * every), ("22", every)):
                        out = Path(folder) / f"{agent}-{name}-{index}-{count}"
                        own = ("--seeds", 10, "--seed", 100 * index + 100, "--checkpoint_every", saved, "--out", out)
                        begin = time.perf_counter()
                        _together(name == "two", "train", *words, *own, cwd=Path(folder))
                        if index < 0:
                            continue
                        whole[name][count].append(time.perf_counter() - begin)
                        if count == "2":
                            last = (out / "metrics.jsonl").read_text().splitlines()[-1]
                            times.append(json.loads(last)["seconds"])
            cost = {
                name: statistics.median(more - less for more, less in zip(times["22"], times["2"], strict=True)) / 20
                for name, times in whole.items()
            }
            ratio = report.ratio(training["one"], training["two"])
            result[agent] = {"seconds": training, "ratio": ratio, "whole": whole, "checkpoint": cost}
    return result


def divided(rounds: int) -> dict[str, Any]:
    """Seconds of one run of PPO on Breakout, on one device and on two, from its second metric line to the last."""
    words = ("--total_steps", 9 * 1024, "--log_every", 1024, "--eval_episodes", 0, "--checkpoint_every", 9 * 1024)
    seconds: dict[str, list[float]] = {"1": [], "2": []}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(rounds):
            for devices, times in seconds.items():
                out = Path(folder) / f"{devices}-{index}"
                own = ("--devices", devices, "--seed", index, "--report", "false", "--out", out)
                rlkit("train", "ppo/breakout_atari", *words, *own, cwd=folder, cache=Path(folder) / "cache")
                lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
                times.append(lines[-1]["seconds"] - lines[1]["seconds"])
    return {
        "seconds": seconds,
        "steps": 7 * 1024,
        "ratio": report.ratio(seconds["1"], seconds["2"]),
        "made": report.provenance(),
    }


def _together(two: bool, *words: Any, cwd: Path) -> None:
    """Run a command as one process, or as two that are joined."""
    if not two:
        rlkit(*words, cwd=cwd, cache=cwd / "cache")
        return
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{opened.getsockname()[1]}"
    joined = [*words, "--coordinator", address, "--num-processes", 2, "--process-id"]
    other = rlkit(*joined, 1, cwd=cwd, cache=cwd / "cache", wait=False)
    rlkit(*joined, 0, cwd=cwd, cache=cwd / "cache")
    if other.wait():
        raise SystemExit(f"{' '.join(map(str, joined))} 1 ended with {other.returncode}")


def against_rejax(python: Path, rounds: int) -> dict[str, Any]:
    """Ten seeds of PPO, on all cores, and vmapped in rejax; alternating rounds."""
    result: dict[str, Any] = {"made": report.provenance()}
    cores = report.machine()["cores"]
    with start("rlkit", Path(sys.executable)) as ours, start("rejax", python) as theirs:
        for num_envs in (4, 64):
            updates = max(2, 60_000 // (num_envs * 128))
            for peer in (ours, theirs):
                peer.call("compile", "ppo", num_envs, updates, 10, cores if peer is ours else 1)
            seconds: dict[str, list[float]] = {"rlkit": [], "rejax": []}
            for seed in range(rounds + 1):
                for peer in (ours, theirs):
                    finished = peer.call("run", seed)
                    assert finished["steps"] == updates * num_envs * 128 * 10
                    if seed:
                        seconds[peer.name].append(finished["seconds"])
            steps = updates * num_envs * 128 * 10
            result[str(num_envs)] = {
                "seconds": seconds,
                "steps": steps,
                "ratio": report.ratio(seconds["rejax"], seconds["rlkit"]),
            }
        result["made"]["versions"] |= {f"rejax's {name}": version for name, version in theirs.versions.items()}
    return result


def curve(rounds: int) -> dict[str, Any]:
    """Steps per second of all seeds together, on one device and on all cores; two workers in turn."""
    result: dict[str, Any] = {"made": report.provenance(), "cores": (cores := report.machine()["cores"])}
    with start("rlkit", Path(sys.executable)) as one, start("rlkit", Path(sys.executable)) as many:
        for subject, counts in CURVES.items():
            batch = 4 * 128 if subject == "ppo" else 4
            for seeds in counts:
                updates = max(4, UPDATES[subject] * 5 // (batch * seeds))
                for worker, devices in ((one, 1), (many, cores)):
                    worker.call("compile", subject, 4, updates, seeds, devices if seeds > 1 else 1)
                seconds: dict[str, list[float]] = {"1": [], str(cores): []}
                for seed in range(rounds + 1):
                    for worker, times in zip((one, many), seconds.values(), strict=True):
                        finished = worker.call("run", seed)
                        if seed:
                            times.append(finished["seconds"])
                steps = updates * batch * seeds
                result.setdefault(subject, {})[str(seeds)] = {
                    "steps": steps,
                    "per_second": {name: steps / statistics.median(times) for name, times in seconds.items()},
                    "ratio": report.ratio(*seconds.values()),
                }
                print(subject, seeds, result[subject][str(seeds)]["per_second"], file=sys.stderr, flush=True)
    return result


def sweep() -> dict[str, Any]:
    """A sweep as a whole process, from an empty cache: straight, killed twice, with halving."""
    result: dict[str, Any] = {"made": report.provenance()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def timed(name: str, *words: Any) -> float:
            begin = time.perf_counter()
            rlkit(
                "sweep", "sweeps/ppo_cartpole", *words, "--out", folder / name, cwd=folder, cache=folder / f"c-{name}"
            )
            return time.perf_counter() - begin

        result["seconds"] = timed("whole")
        table = (folder / "whole" / "trials.csv").read_text()
        result["programs"] = len(list((folder / "whole" / "blocks").iterdir()))
        words = ["sweep", "sweeps/ppo_cartpole", "--out", folder / "killed"]
        for share in (0.35, 0.4):
            process = rlkit(*words, cwd=folder, cache=folder / "c-whole", wait=False)
            time.sleep(share * result["seconds"])
            process.send_signal(signal.SIGKILL)
            process.wait()
            words = ["sweep", folder / "killed"]
        rlkit(*words, cwd=folder, cache=folder / "c-whole")
        result["equal_after_two_kills"] = (folder / "killed" / "trials.csv").read_text() == table
        result["halving_seconds"] = timed("halved", "--halving", 3)
        rows = list(csv.DictReader(table.splitlines()))
        best = max(rows, key=lambda row: float(row["score"] or "-inf"))
        halved = csv.DictReader((folder / "halved" / "trials.csv").read_text().splitlines())
        found = max((row for row in halved if row["status"] == "done"), key=lambda row: float(row["score"] or "-inf"))
        twin = next(row for row in rows if row["trial"] == found["trial"])
        result["best"] = {key: best[key] for key in ("trial", "score", "low", "high")}
        result["halving_best"] = {key: twin[key] for key in ("trial", "score", "low", "high")}
        result["halving_within"] = float(twin["score"]) >= float(best["low"])
    trials = len(rows)
    result |= {"trials": trials, "trials_per_hour": 3600 * trials / result["seconds"]}
    return result | {"halving_share": result["halving_seconds"] / result["seconds"]}


def zoo(python: Path, trials: int) -> dict[str, Any]:
    """Seconds of a study of rl_zoo3, random trials of PPO on CartPole of 100k steps, one job for each core."""
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.perf_counter()
        words = ["--algo", "ppo", "--env", "CartPole-v1", "-n", 100_000, "-optimize", "--n-trials", trials]
        words += ["--sampler", "random", "--pruner", "none", "--n-jobs", report.machine()["cores"], "--n-eval-envs", 1]
        words += ["-f", Path(scratch) / "zoo", "--no-optim-plots"]
        command = [python, "-m", "rl_zoo3.train", *map(str, words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        seconds = time.perf_counter() - begin
    return {
        "made": report.provenance(),
        "trials": trials,
        "seconds": seconds,
        "trials_per_hour": 3600 * trials / seconds,
    }


def render(results: Mapping[str, Any]) -> str:
    text = "# Many seeds and many trials\n\n"
    if one := results.get("command"):
        ratio = one["ratio"]
        rows = [
            [
                *(f"{10 * 200_000 / statistics.median(one['seconds'][name]):,.0f}" for name in ("1", "auto")),
                report.spread(ratio),
                f">= {TARGETS['command']} {report.verdict(ratio['median'] >= TARGETS['command'])}",
            ]
        ]
        text += "`rlkit train ppo/cartpole --seeds 10`, steps per second of all seeds together, compilation apart.\n\n"
        text += report.table(["one device", "all cores", "ratio", "target"], rows)
        text += f"\n{report.provenance_line(one['made'])}\n\n"
    if joined := results.get("several"):
        rows = []
        for agent in ("ppo", "dqn"):
            cell = joined[agent]
            speeds = (f"{statistics.median(x):.2f} s" for x in cell["seconds"].values())
            costs = (f"{1000 * cell['checkpoint'][name]:.0f} ms" for name in ("one", "two"))
            rows.append([agent, *speeds, report.spread(cell["ratio"]), *costs])
        text += "Ten seeds on CartPole, one process with two devices against two processes with one each: training,\n"
        text += "compilation apart, and a checkpoint, which two processes gather first.\n\n"
        text += report.table(["agent", "one", "two", "ratio", "checkpoint, one", "two"], rows)
        text += f"\n{report.provenance_line(joined['made'])}\n\n"
    if one := results.get("divided"):
        speeds = (f"{one['steps'] / statistics.median(one['seconds'][name]):,.0f}" for name in ("1", "2"))
        text += "`rlkit train ppo/breakout_atari`, steps per second of one run, on one device and divided over two.\n\n"
        text += report.table(["one device", "two", "ratio"], [[*speeds, report.spread(one["ratio"])]])
        text += f"\n{report.provenance_line(one['made'])}\n\n"
    if versus := results.get("rejax"):
        rows = []
        for size in ("4", "64"):
            if size in versus:
                cell, ratio = versus[size], versus[size]["ratio"]
                speeds = [cell["steps"] / statistics.median(cell["seconds"][name]) for name in ("rlkit", "rejax")]
                verdict = f">= {TARGETS['rejax']} {report.verdict(ratio['median'] >= TARGETS['rejax'])}"
                rows.append([size, *(f"{speed:,.0f}" for speed in speeds), report.spread(ratio), verdict])
        text += (
            "Ten seeds of PPO on CartPole-v1, steps per second of all seeds together: rlkit spread over all cores,\n"
        )
        text += "rejax vmapped, equal settings.\n\n"
        text += report.table(["envs", "rlkit", "rejax", "ratio", "target"], rows)
        text += f"\n{report.provenance_line(versus['made'])}\n\n"
    if curves := results.get("curve"):
        cores = str(curves["cores"])
        rows = [
            [
                subject,
                seeds,
                *(f"{point['per_second'][name]:,.0f}" for name in ("1", cores)),
                report.spread(point["ratio"]),
            ]
            for subject in CURVES
            for seeds, point in curves.get(subject, {}).items()
        ]
        text += "Steps per second of all seeds together, environments and updates.\n\n"
        text += report.table(["agent", "seeds", "one device", f"{cores} devices", "ratio"], rows)
        text += f"\n{report.provenance_line(curves['made'])}\n\n"
    if swept := results.get("sweep"):
        peer = results.get("zoo")
        rows = [["trials an hour, rlkit (4 seeds each)", f"{swept['trials_per_hour']:,.0f}", ""]]
        if peer is not None:
            ratio = swept["trials_per_hour"] / peer["trials_per_hour"]
            rows += [
                ["trials an hour, rl_zoo3 (1 seed each)", f"{peer['trials_per_hour']:,.0f}", ""],
                ["ratio", f"{ratio:.1f}", f">= {TARGETS['zoo']:g} {report.verdict(ratio >= TARGETS['zoo'])}"],
            ]
        rows += [
            ["programs compiled", swept["programs"], f"1 {report.verdict(swept['programs'] == 1)}"],
            [
                "same table after two kills",
                swept["equal_after_two_kills"],
                report.verdict(swept["equal_after_two_kills"]),
            ],
            [
                "time with halving, of the whole sweep's",
                f"{swept['halving_share']:.2f}",
                f"<= {TARGETS['halving']} {report.verdict(swept['halving_share'] <= TARGETS['halving'])}",
            ],
            [
                "halving's best trial, its score in the whole sweep (the best: "
                f"{swept['best']['score']} [{swept['best']['low']}, {swept['best']['high']}])",
                swept["halving_best"]["score"],
                f"within the interval {report.verdict(swept['halving_within'])}",
            ],
        ]
        text += "`rlkit sweep sweeps/ppo_cartpole`: 64 trials of 4 seeds, 100k steps each, as a whole process with an\n"
        text += f"empty cache, {swept['seconds']:.0f} s"
        text += f"; and {peer['trials']} trials of rl_zoo3.\n\n" if peer is not None else ".\n\n"
        text += report.table(["", "measured", "target"], rows)
        text += f"\n{report.provenance_line(swept['made'])}\n"
    return text


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Steps per second over seeds."""
    from matplotlib.figure import Figure

    curves, cores = results["curve"], str(results["curve"]["cores"])
    figure = Figure(figsize=(10.5, 3.4), dpi=130, layout="constrained")
    for axes, subject in zip(figure.subplots(1, len(CURVES)), CURVES, strict=True):
        points = curves[subject]
        for name, color in (("1", "#b0b0b0"), (cores, "#3465a4")):
            speeds = [point["per_second"][name] for point in points.values()]
            label = "one device" if name == "1" else f"{name} devices"
            axes.plot([int(seeds) for seeds in points], speeds, "o-", color=color, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks([int(seeds) for seeds in points], list(points))
        axes.set_ylim(bottom=0)
        axes.set_title(subject.upper(), fontsize=11, loc="left")
        axes.set_xlabel("seeds in one program")
        axes.grid(color="#e6e6e6")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("steps per second, all seeds")
    figure.axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("command", "several", "divided", "rejax", "curve", "sweep", "zoo")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--zoo-trials", type=int, default=8, help="trials of rl_zoo3 (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--zoo-python", type=Path, help="an interpreter that has rl_zoo3; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where scale.json and scale.md go")
    options = parser.parse_args()
    results = report.read(options.results, "scale")
    for part in options.parts:
        if part == "command":
            results[part] = command(options.rounds)
        elif part == "several":
            results[part] = several(min(options.rounds, 3))
        elif part == "divided":
            results[part] = divided(min(options.rounds, 3))
        elif part == "rejax":
            python = options.peer_python or peers.python(options.peer_env / "rejax", peers.REJAX)
            results[part] = against_rejax(python, options.rounds)
        elif part == "curve":
            results[part] = curve(min(options.rounds, 3))
        elif part == "sweep":
            results[part] = sweep()
        else:
            python = options.zoo_python or peers.python(options.peer_env / "zoo", ZOO)
            results[part] = zoo(python, options.zoo_trials)
        report.write(options.results, "scale", results, render)
    if "curve" in results:
        draw(results, options.results / "scale.png")


if __name__ == "__main__":
    main()

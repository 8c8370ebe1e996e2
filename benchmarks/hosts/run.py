"""Training in Gymnasium environments against Stable-Baselines3 and SBX; steps of a pool; overlap of work.

Each library has a process and a virtual environment of its own and waits while another works; rounds alternate.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
PEER = {"stable-baselines3": "2.9.2", "sbx-rl": "0.28.0", "torch": "2.13.0", "gymnasium": "1.3.0", "mujoco": "4.0.0"}
PEER |= {"imageio": "2.38.1", "packaging": "26.3"}  # which gymnasium imports with MuJoCo
PEER |= {"ale-py": "0.12.1", "opencv-python-headless": "5.0.0.93"}
CARTPOLE = {"env": "gymnasium:CartPole-v1", "num_epochs": 4, "num_minibatches": 4, "num_envs": 64, "num_steps": 128}
LONG = CARTPOLE | {"num_envs": 8, "num_steps": 2048, "num_epochs": 10, "num_minibatches": 256}  # minibatches of 64
MODES = {  # of stepping with rlkit
    "serial": {"backend": "serial", "overlap": True},
    "serial, no overlap": {"backend": "serial", "overlap": False},
    "process": {"backend": "process", "overlap": True},
}
SLEEPER = {"env": "sleeper:Sleeper", "num_envs": 8, "num_workers": 8, "num_steps": 128, "num_minibatches": 8}
SLEEPER |= {"hidden_sizes": [256, 256], "num_epochs": 25}
CHEETAH = {"env": "gymnasium:HalfCheetah-v5", "num_envs": 8, "num_workers": 8, "num_steps": 256, "num_epochs": 10}
CHEETAH |= {"num_minibatches": 32, "normalize_obs": True}
BRIDGES = {  # ours, and Gymnasium's that does the same
    "serial": ("serial", "sync, same step", 64),
    "serial, against resets in a step of their own": ("serial", "sync, next step", 64),
    "process": ("process", "async, same step", 8),
    "process, one for each environment": ("process, one each", "async, same step", 8),
}
ATARI = {  # how rlkit steps the games
    "rlkit, ale": {"env": "ale:Breakout"},
    "rlkit, ale, overlap": {"env": "ale:Breakout", "overlap": True},
    "rlkit, atari, serial": {"env": "atari:Breakout", "backend": "serial"},
}
PARTS = ("speed", "update", "bridge", "overlap", "cheetah", "offpolicy", "atari", "learning", "learning-ppo")
OFF_POLICY = {  # title, the peers that have the agent, and the target of the speed over the first of them
    "sac": ("SAC, HalfCheetah-v5", ("sbx", "sb3"), 1),
    "td3": ("TD3, HalfCheetah-v5", ("sbx", "sb3"), 1),
    "tqc": ("TQC, HalfCheetah-v5", ("sbx",), 1),
    "crossq": ("CrossQ, HalfCheetah-v5", ("sbx",), 1.2),
    "dqn": ("DQN, CartPole-v1", ("sbx", "sb3"), 1),
    "dqn, images": ("DQN, atari:Breakout", ("sb3",), 1.2),
}
LIBRARIES = ("rlkit", "sbx", "sb3")
STEPS_BEFORE, STEPS = 4000, 500  # of a round, before learning starts and from then on


def start(library: str, python: Path) -> Worker:
    environment = {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "JAX_PLATFORMS": "cpu"}
    return Worker(library, [python, HERE / "worker.py", library], environment)


def against(
    workers: Mapping[str, Worker], settings: dict[str, Any], modes: list[str], rounds: int, iterations: int
) -> dict[str, Any]:
    """Seconds of an iteration and of its update, for rlkit in several modes and for its peers."""
    measured: dict[str, list[dict[str, float]]] = {}
    for index in range(rounds + 1):
        for mode in modes:
            # A program holds its workers, so only one exists at a time; one iteration warms it up.
            workers["rlkit"].call("prepare", settings | MODES[mode])
            workers["rlkit"].call("run", 1)
            _add(measured, f"rlkit, {mode}", workers["rlkit"].call("run", iterations), index)
        for name, worker in workers.items():
            if name != "rlkit":
                if index == 0:
                    worker.call("prepare", settings)
                    worker.call("run", 1)
                _add(measured, name, worker.call("run", iterations), index)
    return {"settings": settings, "iterations": iterations, "rounds": measured}


def _add(measured: dict[str, list[Any]], name: str, result: Any, index: int) -> None:
    if index:  # the first round warms up
        measured.setdefault(name, []).append(result)


def bridge(worker: Worker, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds for each transition without an agent, of rlkit's pools and of Gymnasium's vector environments."""
    measured = {}
    for name, (ours, theirs, num_envs) in BRIDGES.items():
        seconds: dict[str, list[float]] = {ours: [], theirs: []}
        for index in range(rounds + 1):
            for kind, list_ in seconds.items():
                result = worker.call("bridge", "CartPole-v1", num_envs, kind, steps)
                list_ += [result["seconds"]] if index else []
        measured[name] = {"num_envs": num_envs, "rlkit": seconds[ours], "gymnasium": seconds[theirs]}
    return measured


def overlap(worker: Worker, settings: dict[str, Any], rounds: int, iterations: int) -> dict[str, Any]:
    """Seconds of iterations with overlap, and without it, where collection and update are timed separately."""
    measured: dict[str, list[dict[str, float]]] = {}
    for index in range(rounds + 1):
        for name, flag in (("overlap", True), ("alone", False)):
            worker.call("prepare", settings | {"overlap": flag})
            worker.call("run", 1)
            # The first iteration of an overlapping run has nothing to overlap with, so there are many.
            _add(measured, name, worker.call("run", iterations), index)
    return {"settings": settings, "rounds": measured}


def off_policy(workers: Mapping[str, Worker], rounds: int) -> dict[str, Any]:
    """Seconds of a step of one environment with one gradient step, and of a step before learning starts."""
    measured: dict[str, Any] = {}
    for task, (_, libraries, _) in OFF_POLICY.items():
        for kind, steps in (("learning", STEPS), ("before", STEPS_BEFORE)):
            names = ("rlkit", *libraries)
            for name in names:
                workers[name].call("prepare_off_policy", task, kind == "learning")
                workers[name].call("run", STEPS)  # compiles, and starts to learn
            runs: dict[str, list[Any]] = {}
            for index in range(rounds + 1):
                for name in names:
                    _add(runs, name, workers[name].call("run", steps), index)
            measured.setdefault(task, {})[kind] = runs
    return {"rounds": measured}


def atari(workers: Mapping[str, Worker], rounds: int, iterations: int) -> dict[str, Any]:
    """Seconds of an iteration of PPO with images, and of its update."""
    measured: dict[str, list[dict[str, float]]] = {}
    workers["sb3"].call("prepare_atari", "Breakout")
    for index in range(rounds + 1):
        for name, keys in ATARI.items():
            workers["rlkit"].call("prepare_config", "ppo/breakout_atari", keys)
            workers["rlkit"].call("run", 1)
            _add(measured, name, workers["rlkit"].call("run", iterations), index)
        _add(measured, "sb3", workers["sb3"].call("run", iterations), index)
    return {"iterations": iterations, "rounds": measured}


def learning(workers: Mapping[str, Worker], steps: int, seeds: int) -> dict[str, Any]:
    """Returns of SAC on HalfCheetah-v5 after equal numbers of steps."""
    measured = {
        name: [workers[name].call("returns", "HalfCheetah-v5", steps, seed) for seed in range(seeds)]
        for name in workers
    }
    return {"steps": steps, "runs": measured}


def learning_ppo(workers: Mapping[str, Worker], steps: int, seeds: int) -> dict[str, Any]:
    """Returns of PPO on HalfCheetah-v5 with rl_zoo3's settings."""
    names = ("rlkit", "sb3")
    return {
        "steps": steps,
        "runs": {name: [workers[name].call("returns_ppo", steps, seed) for seed in range(seeds)] for name in names},
    }


def _column(rounds: list[dict[str, float]], name: str) -> list[float]:
    return [one[name] for one in rounds]


def render(results: Mapping[str, Any]) -> str:
    text = "# Environments outside of JAX\n\n"
    for part, title in (("speed", "128 steps of 64 environments"), ("update", "2048 steps of 8 environments")):
        if part in results:
            text += _against(title, results[part], part)
    if "bridge" in results:
        rows = []
        for name, measured in results["bridge"]["found"].items():
            ratio = report.ratio(measured["rlkit"], measured["gymnasium"])
            times = [f"{1e6 * statistics.median(measured[who]):.1f}" for who in ("rlkit", "gymnasium")]
            target = f"<= 1.2 {report.verdict(ratio['median'] <= 1.2)}"
            rows.append([name, measured["num_envs"], *times, report.spread(ratio), target])
        header = ["stepping CartPole-v1", "envs", "rlkit us", "Gymnasium us", "ratio", "target"]
        text += "## Stepping without an agent, for each transition\n\n" + report.table(header, rows) + "\n"
    for part, title in (("overlap", "An environment that sleeps"), ("cheetah", "HalfCheetah-v5, 8 processes")):
        if part in results:
            text += _overlap(title, results[part], part == "overlap")
    if "offpolicy" in results:
        text += _off_policy(results["offpolicy"])
    if "atari" in results:
        text += _atari(results["atari"])
    for part, title in (("learning", "SAC"), ("learning-ppo", "PPO with rl_zoo3's settings")):
        if part in results:
            text += _learning(title, results[part])
    made = {part: report.provenance_line(x["made"] | {"versions": x["versions"]}) for part, x in results.items()}
    lines = [
        f"- {', '.join(part for part in made if made[part] == line)}: {line}\n" for line in dict.fromkeys(made.values())
    ]
    return text + "".join(lines)


def _against(title: str, measured: Mapping[str, Any], part: str) -> str:
    settings, rounds = measured["settings"], measured["rounds"]
    batch = settings["num_envs"] * settings["num_steps"]
    rows = []
    for name, ours in rounds.items():
        row = [name, f"{batch / statistics.median(_column(ours, 'seconds')):,.0f}"]
        row.append(f"{1e3 * statistics.median(_column(ours, 'update_seconds')):,.0f}")
        for peer in ("sb3", "sbx"):
            if peer not in rounds or not name.startswith("rlkit"):
                row += ["", ""]
                continue
            row += [
                report.spread(report.ratio(_column(rounds[peer], field), _column(ours, field)))
                for field in ("seconds", "update_seconds")
            ]
        rows.append(row)
    header = [
        "library",
        "steps/s",
        "update ms",
        "speed over sb3",
        "update over sb3",
        "speed over sbx",
        "update over sbx",
    ]
    strict, verdicts = rounds.get("rlkit, serial, no overlap"), []  # the default of PPO
    if "sb3" in rounds and strict and part == "speed":
        speed = report.ratio(_column(rounds["sb3"], "seconds"), _column(strict, "seconds"))["median"]
        verdicts.append(f"speed (without overlap) >= 2 {report.verdict(speed >= 2)}")
    if "sb3" in rounds and strict:
        update = report.ratio(_column(rounds["sb3"], "update_seconds"), _column(strict, "update_seconds"))["median"]
        verdicts.append(f"update alone (without overlap) >= 5 {report.verdict(update >= 5)}")
    minibatch = batch // settings["num_minibatches"]
    about = f"{settings['num_epochs']} epochs of minibatches of {minibatch}, separate 2x64 tanh networks. Targets: "
    return f"## PPO on CartPole-v1, {title}\n\n{about}{'; '.join(verdicts)}.\n\n" + report.table(header, rows) + "\n"


def _overlap(title: str, measured: Mapping[str, Any], has_target: bool) -> str:
    rounds, settings = measured["rounds"], measured["settings"]
    updates = _column(rounds["alone"], "update_seconds")
    collections = [one["seconds"] - one["update_seconds"] for one in rounds["alone"]]
    wall = _column(rounds["overlap"], "seconds")
    longer = max((updates, collections), key=statistics.median)
    ratio = report.ratio(wall, longer)
    row = [f"{statistics.median(x):.3f}" for x in (collections, updates, wall)]
    row += [report.spread(ratio), f"<= 1.15 {report.verdict(ratio['median'] <= 1.15)}" if has_target else ""]
    row += [f"{statistics.median(_column(rounds['overlap'], name)):.0%}" for name in ("envs_idle", "learner_idle")]
    batch = settings["num_envs"] * settings["num_steps"]
    row.append(f"{batch / statistics.median(wall):,.0f}")
    header = ["collection s", "update s", "both s", "over the longer", "target", "environments idle"]
    header += ["learner idle", "steps/s"]
    return f"## {title}\n\n" + report.table(header, [row]) + "\n"


def _atari(measured: Mapping[str, Any]) -> str:
    rounds, rows = measured["rounds"], []
    theirs = _column(rounds["sb3"], "seconds")
    for name, ours in rounds.items():
        seconds, update = _column(ours, "seconds"), _column(ours, "update_seconds")
        row = [name, f"{1024 / statistics.median(seconds):,.0f}", f"{statistics.median(update):.2f}"]
        ratio = report.ratio(theirs, seconds)
        rows.append([*row, *([] if name == "sb3" else [report.spread(ratio), report.verdict(ratio["median"] >= 1.4)])])
    rows[-1] += [""] * 2
    header = ["library", "steps/s", "update s", "speed over sb3", "target >= 1.4"]
    about = "The settings of ppo/breakout_atari: 8 environments x 128 steps, 4 epochs of 4 minibatches, one Nature CNN "
    about += "of 512 units. Stable-Baselines3 steps its games in its own process, as rl_zoo3 has it."
    return f"## PPO on Breakout\n\n{about}\n\n" + report.table(header, rows) + "\n"


def _learning(title: str, measured: Mapping[str, Any]) -> str:
    rows = []
    for name, runs in measured["runs"].items():
        returns, seconds = _column(runs, "return"), _column(runs, "seconds")
        listed = ", ".join(f"{one:.0f}" for one in returns)
        rows.append([name, listed, f"{statistics.mean(returns):.0f}", f"{statistics.mean(seconds):.0f}"])
    text = f"## {title} on HalfCheetah-v5 after {measured['steps']:,} steps\n\n"
    return text + report.table(["library", "returns", "mean", "seconds a run"], rows) + "\n"


def _off_policy(measured: Mapping[str, Any]) -> str:
    rows = []
    for task in measured["rounds"]:
        title, libraries, target = OFF_POLICY[task]
        learns, before = (measured["rounds"][task][kind] for kind in ("learning", "before"))
        seconds = {name: _column(learns[name], "seconds") for name in learns}
        ratio = report.ratio(seconds[libraries[0]], seconds["rlkit"])
        beside = 1e3 * statistics.median(
            one["seconds"] * one["learner_idle"] - one["seconds"] * (1 - one["envs_idle"]) for one in learns["rlkit"]
        )
        rate = {name: 1 / statistics.median(_column(before[name], "seconds")) for name in before}
        rows.append(
            [
                title,
                *(f"{1e3 * statistics.median(seconds[name]):.2f}" if name in seconds else "" for name in LIBRARIES),
                f"{report.spread(ratio)} ({libraries[0]})",
                f">= {target:g} {report.verdict(ratio['median'] >= target)}",
                f"{beside:.2f}",
                f"<= 0.4 {report.verdict(beside <= 0.4)}",
                *(f"{rate[name]:,.0f}" if name in rate else "" for name in LIBRARIES),
                "" if "atari:" in title else f">= 8,000 {report.verdict(rate['rlkit'] >= 8000)}",
            ]
        )
    header = ["agent", "rlkit ms", "sbx ms", "sb3 ms", "speed over", "target"]
    header += ["rlkit beside update and environment ms", "target"]
    header += [f"steps/s before learning, {name}" for name in LIBRARIES] + ["target"]
    return (
        "## Off-policy agents: one environment, one gradient step after each of its steps\n\n"
        "Milliseconds of the whole loop for each step; 2x256 units, batches of 256 (DQN: 128; with images the Nature "
        "CNN, batches of 32).\n\n" + report.table(header, rows) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS[:-2], choices=PARTS, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--iterations", type=int, default=10, help="rollouts and updates in a round (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="of the bridge in a round (%(default)s)")
    parser.add_argument("--learning-steps", type=int, help="of the learning parts (30,000; 1,000,000 for PPO)")
    parser.add_argument("--seeds", type=int, default=3, help="of the learning part (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/sb3")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has the peers; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where hosts.json and hosts.md go")
    options = parser.parse_args()
    python = options.peer_python or peers.python(options.peer_env, PEER)
    results = report.read(options.results, "hosts")
    with start("rlkit", Path(sys.executable)) as ours, start("sb3", python) as sb3, start("sbx", python) as sbx:
        workers = {"rlkit": ours, "sb3": sb3, "sbx": sbx}
        modes = [*MODES]
        for part in options.parts:
            measured: dict[str, Any] = {}
            if part == "speed":
                measured = against(workers, CARTPOLE, modes, options.rounds, options.iterations)
            elif part == "update":
                measured = against(workers, LONG, ["serial, no overlap"], min(options.rounds, 3), 1)
            elif part == "bridge":
                measured = {"found": bridge(ours, options.rounds, options.steps)}
            elif part == "overlap":
                measured = overlap(ours, SLEEPER, options.rounds, options.iterations)
            elif part == "cheetah":
                if "mujoco" not in ours.versions:
                    print("cheetah needs mujoco; install it: pip install 'rlkit-jax[mujoco]'", file=sys.stderr)
                    continue
                measured = overlap(ours, CHEETAH, options.rounds, options.iterations)
            elif part == "offpolicy":
                measured = off_policy(workers, options.rounds)
            elif part == "learning":
                measured = learning(workers, options.learning_steps or 30_000, options.seeds)
            elif part == "learning-ppo":
                measured = learning_ppo(workers, options.learning_steps or 1_000_000, options.seeds)
            elif part == "atari":
                measured = atari(workers, options.rounds, 2)
            versions = {name: worker.versions for name, worker in workers.items() if name != "sbx"}
            results[part] = measured | {"made": report.provenance(), "versions": versions}
            report.write(options.results, "hosts", results, render)


if __name__ == "__main__":
    main()

"""Agents that learn from a dataset alone, beside the policy that collected it, and beside d3rlpy on the same files.

For each seed, SAC is trained for a few thousand steps, 100,000 steps of its exploring policy are collected, and the
agents learn from them, as by `rlkit train` and `rlkit collect`. With `--d3rlpy PYTHON`, an interpreter that has d3rlpy
(and mujoco), its agents learn from the same steps with the same settings, but a constant learning rate.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlkit.ops.statistics import iqm, iqm_interval
from rlkit.runs import collect, datasets, load_config, train

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
STEPS, SEEDS = 100_000, 10
COLLECTOR = "SAC that collected"
LEARNERS = {"BC": "bc", "IQL": "iql", "TD3+BC": "td3_bc", "ReBRAC": "rebrac"}
PEERS = {"d3rlpy's BC": "BC", "d3rlpy's IQL": "IQL", "d3rlpy's ReBRAC": "ReBRAC"}


@dataclass(frozen=True)
class Task:
    """An environment, the config of SAC that collects in it, and what is changed in the configs of the learners."""

    env: str  # Gymnasium's id
    collector: str
    half: int  # steps of SAC
    changed: Mapping[str, Any]
    episodes: int


TASKS = {
    "pendulum": Task("Pendulum-v1", "sac/pendulum", 4000, {}, 128),
    "halfcheetah": Task(
        "HalfCheetah-v5",
        "sac/mujoco",
        20_000,
        {"env": "gymnasium:HalfCheetah-v5", "total_steps": 50_000, "hidden_sizes": [256, 256], "tau": 0.005},
        10,
    ),
}


def trained(task: Task, name: str, out: Path, keys: Mapping[str, Any]) -> float:
    """Train a config: the mean greedy return of its final parameters."""
    config = load_config(name, {"eval_episodes": task.episodes, **keys})
    if train(config, out=out, show=False).evaluation is None:
        raise SystemExit(1)
    return json.loads((out / "eval.json").read_text())["mean"]


def settings(task: Task, agent: str) -> dict[str, Any]:
    """The keys of a learner, on top of its config for Pendulum, that this task changes."""
    config = load_config(f"{agent}/pendulum")
    known = {*config.agent.model_dump(), *config.hyper, "env", "total_steps"}
    return {key: value for key, value in task.changed.items() if key in known}


def measure(task: Task, seed: int, folder: Path, peer: Worker | None) -> dict[str, Any]:
    """One seed: returns of the policy that collects and of those that learn from its data, and seconds of each."""
    sac, data = folder / "sac", folder / "data"
    keys: dict[str, Any] = {"total_steps": task.half, "learning_rate_schedule": "constant", "seed": seed}
    returns = {COLLECTOR: trained(task, task.collector, sac, keys)}
    collect(sac, STEPS, data, seed=seed)
    seconds = {}
    for label, agent in LEARNERS.items():
        begin = time.perf_counter()
        keys = {**settings(task, agent), "dataset": str(data), "seed": seed}
        returns[label] = trained(task, f"{agent}/pendulum", folder / agent, keys)
        seconds[label] = time.perf_counter() - begin
        print(seed, label, returns[label], f"{seconds[label]:.0f} s", file=sys.stderr)
    if peer is not None:
        stored = folder / "data.npz"
        export(data, stored)
        for label, name in PEERS.items():
            begin = time.perf_counter()
            config = load_config(f"{LEARNERS[name]}/pendulum", settings(task, LEARNERS[name]))
            own = config.agent.model_dump(mode="json") | config.hyper | {"total_steps": config.run.total_steps}
            returns[label] = peer.call("learn", name, str(stored), task.env, own, task.episodes, seed)
            seconds[label] = time.perf_counter() - begin
            print(seed, label, returns[label], f"{seconds[label]:.0f} s", file=sys.stderr)
    made = report.provenance()
    if peer is not None:
        made["versions"]["d3rlpy"] = peer.versions
    return {"returns": returns, "seconds": seconds, "made": made}


def export(data: Path, stored: Path) -> None:
    """The steps of a dataset, environment by environment, as an archive; the end of each stream is a time limit."""
    steps = datasets.load(data).steps
    truncated = np.array(steps.truncated)
    truncated[-1] |= ~steps.terminated[-1]
    fields = {"obs": steps.obs, "action": steps.action, "reward": steps.reward, "terminated": steps.terminated}
    arrays = {**fields, "truncated": truncated}
    np.savez(stored, **{name: np.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]) for name, x in arrays.items()})


def render(results: Mapping[str, Any]) -> str:
    text = "# Learning from a dataset alone\n\n"
    for name, result in results.items():
        task, seeds = TASKS[name], list(result.values())
        rows = []
        for label in (COLLECTOR, *LEARNERS, *PEERS):
            both = [(x["returns"][label], x["returns"][COLLECTOR]) for x in seeds if label in x["returns"]]
            if not both:
                continue
            scores, collected = map(list, zip(*both, strict=True))
            table = np.asarray(scores, np.float32)
            low, high = (float(end) for end in iqm_interval(table, jax.random.key(0)))
            better = sum(ours > theirs for ours, theirs in both)
            beats = "" if label == COLLECTOR else f"{better} of {len(scores)}"
            imitates = PEERS.get(label, label) in (COLLECTOR, "BC")  # and has no reason to be better
            met = None if imitates else statistics.mean(scores) > statistics.mean(collected)
            center = f"{float(iqm(table)):.1f} [{low:.1f}, {high:.1f}]"
            took = [x["seconds"][label] for x in seeds if label in x.get("seconds", {})]
            row = [label, len(scores), f"{statistics.mean(scores):.1f}", f"{min(scores):.1f}", center, beats]
            rows.append([*row, report.verdict(met), f"{statistics.median(took):.0f}" if took else ""])
        header = ["policy", "seeds", "mean", "least seed", "IQM [95% interval]", "seeds that beat it"]
        text += (
            f"## {task.env}\n\nFor each seed SAC is stopped after {task.half:,} steps and collects {STEPS:,}, "
            f"exploring; the others learn from these. Greedy returns of the final parameters, {task.episodes} episodes "
            "of each seed from 0 on.\n\n" + report.table([*header, "mean is greater", "seconds"], rows) + "\n"
        )
    return text + report.provenance_lines(seed["made"] for result in results.values() for seed in result.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["pendulum"], choices=TASKS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="from 0 on; results of others stay (%(default)s)")
    parser.add_argument("--d3rlpy", metavar="PYTHON", help="an interpreter that has d3rlpy")
    parser.add_argument("--results", type=Path, default=HERE, help="where offline.json and offline.md go")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        jax.config.update("jax_compilation_cache_dir", f"{temporary}/cache")  # one compilation for all seeds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        command = [options.d3rlpy, HERE / "d3rlpy_worker.py"]
        peer = stack.enter_context(Worker("d3rlpy", command, {})) if options.d3rlpy else None
        for name in options.tasks:
            for seed in range(options.seeds):
                folder = Path(temporary) / f"{name}-{seed}"
                folder.mkdir()
                measured = measure(TASKS[name], seed, folder, peer)
                results = report.read(options.results, "offline")
                results.setdefault(name, {})[str(seed)] = measured
                report.write(options.results, "offline", results, render)


if __name__ == "__main__":
    main()

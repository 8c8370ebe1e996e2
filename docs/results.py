"""Returns that the configs of an algorithm reach, for its page, from the JSON files of the benchmarks."""

import json
from pathlib import Path

import jax
import numpy as np
import yaml
from api import heading, table

from rlkit.ops.statistics import iqm, iqm_interval

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
LEARNING = ROOT / "benchmarks/learning"
_OFFLINE = {"iql": "IQL", "td3_bc": "TD3+BC", "bc": "BC", "rebrac": "ReBRAC"}  # agents in offline.json, by its names
_ON_MINATAR = ("ppo", "pqn", "dqn", "c51", "qrdqn", "iqn", "r2d2", "sac")


def section(name: str) -> list[str]:
    """Return the section of the returns that an agent's configs reach, each with the command that measures it."""
    tables = [*_learning_table(name), *_offline_table(name)]
    minatar = [
        "MinAtar, beside other agents and rejax (``python benchmarks/learning/minatar.py``):",
        ":doc:`/benchmarks/learning/minatar`.",
        "",
    ]
    script = "offline.py" if name in _OFFLINE else "run.py CONFIG"
    none = [f"No result is recorded yet; ``python benchmarks/learning/{script}`` makes one.", ""]
    return [*heading("Results", "-"), *([*tables, *(minatar if name in _ON_MINATAR else [])] or none)]


def _learning_table(name: str) -> list[str]:
    """The returns of an agent's configs, each trained with its environment."""
    rows = []
    for key, result in json.loads((LEARNING / "learning.json").read_text()).items():
        if _agent_of(result["config"]) != name:
            continue
        low, high = result["interval"]
        config, _, changed = key.partition(", ")
        label = f"`{config}`_" + (f", {changed}" if changed else "")  # a link to the config, on this page
        returns = f"{result['iqm']:.1f} [{low:.1f}, {high:.1f}]"
        seeds, seconds = str(len(result["mean_of_seed"])), f"{np.median(result['seconds']):.0f}"
        cores = str(result["made"]["machine"]["cores"])
        rows.append([label, f"{result['steps']:,}", seeds, returns, f"{result['min']:.1f}", seconds, cores])
    if not rows:
        return []
    return [
        "Greedy returns of the final parameters, ``eval_episodes`` of each seed, no seed and no checkpoint chosen.",
        "Each is made by ``python benchmarks/learning/run.py CONFIG``.",
        "All rows, with machine and versions: :doc:`/benchmarks/learning/learning`; raw data:",
        ":download:`learning.json </benchmarks/learning/learning.json>`.",
        "",
        *table(["config", "steps", "seeds", "IQM [95% interval]", "least seed", "seconds a seed", "cores"], rows),
    ]


def _offline_table(name: str) -> list[str]:
    """The returns of an agent that learned from a dataset alone, beside those of the policy that collected it."""
    measured = json.loads((LEARNING / "offline.json").read_text())["pendulum"].values()
    seeds, rows = [seed for seed in measured if _OFFLINE.get(name) in seed["returns"]], []
    if not seeds:
        return []
    config = f"{name}/pendulum"
    for key, label in ((_OFFLINE[name], f"`{config}`_"), ("SAC that collected", "the SAC that collected the data")):
        returns = np.array([seed["returns"][key] for seed in seeds], np.float32)
        low, high = map(float, iqm_interval(returns, jax.random.key(0)))
        rows.append([label, str(len(seeds)), f"{float(iqm(returns)):.1f} [{low:.1f}, {high:.1f}]"])
        rows[-1].append(f"{returns.min():.1f}")
    return [
        "Greedy returns of the final parameters after learning from a dataset alone, no seed and no checkpoint chosen.",
        "They are made by ``python benchmarks/learning/offline.py``; :doc:`/benchmarks/learning/offline` describes the",
        "dataset, and has the machine and versions.",
        "",
        *table(["policy", "seeds", "IQM [95% interval]", "least seed"], rows),
    ]


def _agent_of(config: str) -> str:
    return yaml.safe_load((CONFIGS / f"{config}.yaml").read_text())["agent"]

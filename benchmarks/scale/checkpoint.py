"""Checkpoints: a replay buffer of 1 GB against NumPy writing and reading the same bytes, and their share of a run.

Saving is compared with `ndarray.tofile` of every leaf into one file and one fsync; restoring with `np.fromfile`, with
the files in the page cache and with their pages dropped before. A checkpoint is hashed, and read back before it counts.
The share of a run is the seconds in `checkpoint.save`, with the interval that the configs have by default, of the whole
run, compilation and the last evaluation included; and, in a column of its own, of updates and saves alone.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import replay
from rlkit.runs import files, load_config, loop, run_directory
from rlkit.runs.checkpoints import checkpoint
from rlkit.types import Transition

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import report

HERE = Path(__file__).resolve().parent
NAME = "checkpoint"
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo/cartpole": ("ppo/cartpole", {"num_envs": 32, "total_steps": 500_000, "num_epochs": 4, "num_minibatches": 4}),
    "dqn/cartpole, buffer of 100,000 steps": (
        "dqn/cartpole",
        {"total_steps": 500_000, "capacity": 100_000, "batch_size": 128, "replay_ratio": 0.25},
    ),
}
MOST_TIMES, MOST_SHARE = 3.0, 0.02


def buffer(num_bytes: int) -> Any:
    """A full uniform buffer of transitions of 150 bytes, of random numbers."""
    step = Transition(
        obs=jnp.zeros(17), action=jnp.zeros(1), reward=jnp.zeros(()), terminated=jnp.array(False),
        truncated=jnp.array(False), next_obs=jnp.zeros(17),
    )  # fmt: skip
    one = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(step))
    state, rng = replay.uniform(num_bytes // one, 256).init(step, 1), np.random.default_rng(0)

    def random(leaf: jax.Array) -> jax.Array:
        if leaf.dtype == jnp.float32 and leaf.size > 1:
            return jnp.asarray(rng.random(leaf.shape, np.float32))
        return leaf

    return jax.block_until_ready(jax.tree.map(random, state))


class Large:
    """Saves and restores of one state, and NumPy's writes and reads of its bytes, in a folder."""

    def __init__(self, state: Any, folder: Path):
        self.state, self.folder = state, folder
        self.leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
        self.file, self.run = folder / "numpy.bin", folder / "run"
        (self.run / run_directory.CHECKPOINTS).mkdir(parents=True)

    @property
    def num_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in self.leaves)

    def save(self, index: int) -> None:
        checkpoint.save(self.run, index, self.state, {})

    def write(self, index: int) -> None:
        with self.file.open("wb") as file:
            for leaf in self.leaves:
                leaf.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def restore(self, index: int) -> None:
        restored, *_ = checkpoint.restore(self.run, self.state)
        jax.block_until_ready(restored)

    def read(self, index: int) -> None:
        with self.file.open("rb") as file:
            for leaf in self.leaves:
                np.fromfile(file, leaf.dtype, leaf.size)

    def drop_pages(self) -> None:
        """Drop the files' pages from the page cache."""
        for path in (self.file, *self.run.rglob("*.bin")):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def clear(self) -> None:
        for step in checkpoint.steps(self.run):
            files.remove(self.run / run_directory.CHECKPOINTS / f"{step:012d}")
        self.file.unlink()


def measure_large(num_bytes: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of every operation, in rounds that alternate between them; in the end they read without the cache."""
    large = Large(buffer(num_bytes), folder)
    seconds: dict[str, list[float]] = {}

    def add(suffix: str = "", **operations: Callable[[int], None]) -> None:
        for name, (value,) in report.interleaved(operations, 1).items():
            seconds.setdefault(name + suffix, []).append(value)

    for index in range(rounds + 1):
        pairs = [("save", "write"), ("restore", "read")]
        for pair in pairs if index % 2 else [pair[::-1] for pair in pairs]:
            add(**{name: partial(timed, getattr(large, name), index) for name in pair})
        for name in ("restore", "read"):
            large.drop_pages()
            add(" from the disk", **{name: partial(timed, getattr(large, name), index)})
        large.clear()
        if not index:  # the first warms up
            seconds.clear()
    return {"num_bytes": large.num_bytes, "seconds": seconds, "load": os.getloadavg(), "made": report.provenance()}


def timed(function: Callable[[int], None], index: int, _: int) -> None:
    function(index)


def measure_run(name: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of whole runs, of their updates, and of each of their saves."""
    config, overrides = RUNS[name]
    found: dict[str, list[Any]] = {"whole": [], "updates": [], "saves": []}
    save = checkpoint.save
    for index in range(rounds + 1):
        saves: list[float] = []

        def timed_save(*arguments: Any, saves: list[float] = saves, **options: Any) -> Path:
            begin = time.perf_counter()
            path = save(*arguments, **options)
            saves.append(time.perf_counter() - begin)
            return path

        out = folder / f"{config.replace('/', '-')}-{index}"
        begin = time.perf_counter()
        with mock.patch.object(checkpoint, "save", timed_save):
            trained = loop.train(load_config(config, overrides | {"seed": index}), out=out, show=False)
        if index:  # the first warms up
            found["whole"].append(time.perf_counter() - begin)
            found["updates"].append(checkpoint.restore(out, trained.state)[2]["seconds"])
            found["saves"].append(saves)
    return found | {"load": os.getloadavg(), "made": report.provenance()}


def render(results: Mapping[str, Any]) -> str:
    text = "# Checkpoints\n\nMedians over alternating rounds, and the least and the greatest ratio of a round.\n"
    if large := results.get("large"):
        seconds, size = large["seconds"], large["num_bytes"] / 1e9
        rows = []
        for ours, numpy in (("save", "write"), ("restore", "read"), ("restore from the disk", "read from the disk")):
            times = report.ratio(seconds[ours], seconds[numpy])
            both = [f"{statistics.median(seconds[name]):.2f}" for name in (ours, numpy)]
            met = report.verdict(times["median"] <= MOST_TIMES)
            rows.append([ours, *both, report.spread(times), f"<= {MOST_TIMES:g} {met}"])
        text += f"\n## A replay buffer of {size:.2f} GB\n\n"
        text += report.table(["", "rlkit s", "NumPy s", "ratio", "target"], rows) + "\n" + ending(large)
    if runs := results.get("runs"):
        rows = []
        for name, found in runs.items():
            saving = [sum(saves) for saves in found["saves"]]
            one = statistics.median(seconds for saves in found["saves"] for seconds in saves)
            whole = report.ratio(saving, found["whole"])
            active = report.ratio(saving, [a + b for a, b in zip(saving, found["updates"], strict=True)])
            cells = [f"{statistics.median(found['whole']):.1f}", len(found["saves"][0]), f"{1e3 * one:.1f}"]
            met = report.verdict(whole["median"] <= MOST_SHARE)
            rows.append([name, *cells, percent(whole), percent(active), f"<= {MOST_SHARE:.0%} {met}"])
        header = [
            "run",
            "whole s",
            "saves",
            "ms a save",
            "of the whole run",
            "of updates and saves",
            "target, of the whole",
        ]
        text += "\n## Share of a run\n\n" + report.table(header, rows) + "\n" + ending([*runs.values()][-1])
    return text


def percent(share: Mapping[str, float]) -> str:
    """A share with the least and the greatest of a round."""
    middle, low, high = (f"{share[name]:.2%}" for name in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


def ending(found: Mapping[str, Any]) -> str:
    """The machine, its load at the end of the measurement, versions and date."""
    return f"Load average {found['load'][0]:.1f}. {report.provenance_line(found['made'])}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("large", "runs"), default=["large", "runs"])
    parser.add_argument("--bytes", type=int, default=10**9, help="of the replay buffer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="timed rounds, an even number (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where files are written meanwhile (the system's temporary folder)")
    parser.add_argument("--results", type=Path, default=HERE, help="where checkpoint.json and checkpoint.md go")
    options = parser.parse_args()
    results = report.read(options.results, NAME)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        if "large" in options.parts:
            results["large"] = measure_large(options.bytes, options.rounds, Path(temporary))
            report.write(options.results, NAME, results, render)
        for name in RUNS if "runs" in options.parts else ():
            results.setdefault("runs", {})[name] = measure_run(name, options.rounds, Path(temporary))
            report.write(options.results, NAME, results, render)


if __name__ == "__main__":
    main()

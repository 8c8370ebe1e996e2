"""Forward passes and gradient steps of convolutional networks on a CPU, inside of a loop as in learning.

The Nature CNN beside PyTorch with Stable-Baselines3's settings and beside `lax.conv_general_dilated` with JAX's own
gradients; the network of IMPALA and one of MinAtar's size beside convolutions as patches times a matrix. Rounds
alternate.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
PEER = {"stable-baselines3": "2.9.2", "torch": "2.13.0", "gymnasium": "1.3.0"}
TWO = "rlkit, two devices"  # the batch divided over the two cores
BATCHES = {"nature": (32, 256), "impala": (32,), "minatar": (32, 128, 1024)}
WAYS = {
    "nature": ("rlkit", TWO, "patches", "torch", "torch, channels last", "lax.conv"),
    "impala": ("rlkit", "patches"),
    "minatar": ("rlkit", "patches"),
}
BASE = {"nature": "torch", "impala": "patches", "minatar": "patches"}  # what rlkit is compared with
TITLES = {
    "nature": "The Nature CNN: 84 x 84 x 4 bytes, a dense layer of 512",
    "impala": "The residual network of IMPALA: 84 x 84 x 4 bytes, a dense layer of 256",
    "minatar": "A network of MinAtar's size: 10 x 10 x 4 bytes, 16 filters of 3 x 3, a dense layer of 128",
}
TARGET = 1.1  # times the time of `BASE`


def start(library: str, python: Path, devices: int = 1) -> Worker:
    environment = {"PYTHONPATH": f"{HERE}:{HERE.parents[1]}", "JAX_PLATFORMS": "cpu"}
    environment |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    return Worker(library, [python, HERE / "worker.py", library], environment)


def measure(workers: Mapping[str, Worker], network: str, rounds: int, passes: int) -> dict[str, Any]:
    """Seconds of a pass, by round, of each number of images, kind and way."""
    cases = {}
    for batch in BATCHES[network]:
        for kind in ("forward", "gradient"):
            for way in WAYS[network]:
                slow = way == "lax.conv" and kind == "gradient"  # seconds a pass
                if slow and batch > 32:
                    continue
                name, library = f"{batch}/{kind}/{way}", "torch" if way.startswith("torch") else "rlkit"
                worker = workers[way if way in workers else library]
                worker.call("prepare", name, way, network, batch, kind, 2 if slow else passes)
                worker.call("run", name)  # warms up
                cases[name] = worker
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in random.Random(number).sample([*cases], len(cases)):  # what comes before a case slows it down
            worker = cases[name]
            seconds[name].append(worker.call("run", name))
    return {"passes": passes, "seconds": seconds}


def render(results: Mapping[str, Any]) -> str:
    text = "# Convolutional networks on a CPU\n\n"
    for network, measured in results.items():
        base, ways = BASE[network], WAYS[network]
        rows = []
        for batch in BATCHES[network]:
            for kind in ("forward", "gradient"):
                seconds = {way: measured["seconds"].get(f"{batch}/{kind}/{way}") for way in ways}
                ratio = report.ratio(seconds["rlkit"], seconds[base])
                target = f"<= {TARGET} {report.verdict(ratio['median'] <= TARGET)}"
                times = [f"{1e3 * statistics.median(x):.3g}" if x else "" for x in seconds.values()]
                rows.append([batch, kind, *times, report.spread(ratio)])
                if TWO in ways:
                    rows[-1].append(report.spread(report.ratio(seconds[TWO], seconds[base])))
                rows[-1].append(target)
        ratios = [f"{way} / {base}" for way in ("rlkit", TWO) if way in ways]
        header = ["images", "pass", *(f"{way} ms" for way in ways), *ratios, "target"]
        text += f"## {TITLES[network]}\n\n" + report.table(header, rows) + "\n"
    text += "A pass is a forward pass, or a gradient and a step of gradient descent.\n\n"
    return text + report.provenance_lines(x["made"] | {"versions": x["versions"]} for x in results.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=[*BATCHES], choices=BATCHES, help="(%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--passes", type=int, default=10, help="in a loop (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/sb3")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has the peers; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=HERE, help="where networks.json and networks.md go")
    options = parser.parse_args()
    python = options.peer_python or peers.python(options.peer_env, PEER)
    results = report.read(options.results, "networks")
    rlkit = Path(sys.executable)
    with start("rlkit", rlkit) as ours, start("rlkit", rlkit, 2) as divided, start("torch", python) as torch:
        workers = {"rlkit": ours, TWO: divided, "torch": torch}
        for network in options.networks:
            measured = measure(workers, network, options.rounds, options.passes)
            versions = {name: workers[name].versions for name in ("rlkit", "torch")}
            results[network] = measured | {"made": report.provenance(), "versions": versions}
            report.write(options.results, "networks", results, render)


if __name__ == "__main__":
    main()

"""Cost of replay buffers against flashbax 0.1.3, cpprb 11.0.0 and TorchRL 0.14.1: prioritized, and slices of episodes.

Each library has a process of its own and waits while another one works; rounds alternate over libraries and sizes. A
cycle of a prioritized buffer, full and with distinct priorities, adds a step, samples a batch and updates its
priorities; a cycle of a buffer of slices adds steps and samples. rlkit and flashbax are timed inside of one jitted
scan. All are timed as called from Python, where each operation is a call that is waited for; the time is the median of
a round. For calls from Python, rlkit and flashbax have a second process, in which XLA has one thread and computes on
the thread of the caller; such settings suit a program that waits for each small call. Their times with JAX's own
settings are recorded as well.

The peers have a virtual environment that is made on first use, as by (it needs about 2 GB; torch's smaller CPU build
suffices):

    python -m venv ~/.cache/rlkit/peers/replay
    ~/.cache/rlkit/peers/replay/bin/python -m pip install torch==2.13.0 torchrl==0.14.1 tensordict==0.14.3 \\
        flashbax==0.1.3 cpprb==11.0.0 jax==0.10.2

`--quick` runs everything at small sizes. `--gpu` needs no peers: it measures the trees by themselves, on the
accelerator.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import plotting
import rendering
from common import peers, report
from common.workers import Worker

HERE = Path(__file__).resolve().parent
PEERS = {"torch": "2.13.0", "torchrl": "0.14.1", "tensordict": "0.14.3", "flashbax": "0.1.3", "cpprb": "11.0.0"}
LIBRARIES = ("rlkit", "flashbax", "cpprb", "torchrl")
BATCH, SLICES, SLICE_LEN, ADDED = 256, 256, 4, 256
PER_ROUND = {"jit": 2000, "python": 500}  # cycles
WITH_XLA = ("rlkit", "flashbax")
LAYOUTS = {  # by name, the arguments of rlkit's buffer
    "1 env x 256 steps": {"envs": 1, "rows": ADDED, "sampling": "slice"},
    "1 env x 256 steps, by episode": {"envs": 1, "rows": ADDED, "sampling": "episode"},
    "256 envs x 1 step": {"envs": ADDED, "rows": 1, "sampling": "slice"},
}
FULL = {
    "capacities": [2**14, 2**17, 2**20, 2**23],
    "batches": [64, 256, 1024, 4096],
    "batch_capacity": 2**20,
    "slices": [(5_000_000, 6_000_000), (5_000_000, 600_000_000), (346_000_000, 600_000_000)],
    "layouts": list(LAYOUTS),
    "trees": [2**14, 2**20],
    "gpu_trees": [2**20, 2**26],
    "tree_batches": [256, 65_536],
    "fanouts": [2, 4, 8, 16, 64],
    "counts": {},
    "slice_counts": {},
    "rounds": 11,
}
QUICK = FULL | {
    "capacities": [2**14],
    "batches": [64],
    "batch_capacity": 2**12,
    "slices": [(500_000, 600_000), (2**21, 4_000_000)],
    "layouts": ["1 env x 256 steps"],
    "trees": [2**12],
    "gpu_trees": [2**16],
    "tree_batches": [256],
    "fanouts": [4, 16],
    "counts": {"jit": 100, "python": 50},
    "slice_counts": {"jit": 40, "python": 20},
    "rounds": 2,
}
Results = dict[str, Any]


def measure(
    cases: Mapping[str, tuple[str, Mapping[str, dict[str, Any]]]], libraries: Mapping[str, Worker], rounds: int
) -> Results:
    """Seconds of every case, by library, mode and operation, and a check of each buffer after the last round.

    Args:
      cases: by name, the kind of the buffer and by library its arguments.
      libraries: the running workers, by name.
      rounds: timed rounds; one more before them warms up.
    """
    runs = []
    for case, (kind, arguments) in cases.items():
        for library in arguments:
            for process in processes(library, libraries):
                print(f"filling {process}: {kind}, {case}", file=sys.stderr)
                modes = libraries[process].call("build", case, kind, arguments[library])
                runs += [(mode, case, library, process) for mode in modes if process == library or mode == "python"]
    results: Results = {case: {library: {} for library in arguments} for case, (_, arguments) in cases.items()}
    for seed in range(rounds + 1):
        for mode, case, library, process in sorted(runs, key=lambda run: run[0]):  # jit and Python apart
            seconds = libraries[process].call("run", case, mode, seed)
            name = "default" if mode == "python" and process != processes(library, libraries)[-1] else mode
            rounds_of = results[case][library].setdefault(name, {operation: [] for operation in seconds})
            for operation, value in seconds.items() if seed else ():  # the first round compiles and warms up
                rounds_of[operation].append(value)
    for case, by_library in results.items():
        for library in by_library:
            by_library[library]["check"] = libraries[library].call("check", case)
            for process in processes(library, libraries):
                libraries[process].call("drop", case)
    return results


def one_thread(library: str) -> str:
    """Name of the process of a library in which XLA has one thread."""
    return f"{library}, one thread"


def processes(library: str, running: Mapping[str, Worker]) -> list[str]:
    """Names of the processes that time a library; the last is the one for calls from Python."""
    return [process for process in (library, one_thread(library)) if process in running]


def everywhere(arguments: dict[str, Any]) -> tuple[str, dict[str, dict[str, Any]]]:
    """A prioritized case with the same arguments for every library."""
    return "prioritized", dict.fromkeys(LIBRARIES, arguments)


def prioritized(libraries: Mapping[str, Worker], sizes: Mapping[str, Any], rounds: int) -> Results:
    """Measure prioritized buffers by capacity."""
    cases = {
        str(capacity): everywhere({"capacity": capacity, "batch": BATCH, **sizes["counts"]})
        for capacity in sizes["capacities"]
    }
    return measure(cases, libraries, rounds)


def batch(libraries: Mapping[str, Worker], sizes: Mapping[str, Any], rounds: int) -> Results:
    """Measure prioritized buffers by batch size, at one capacity."""
    capacity = sizes["batch_capacity"]

    def counts(size: int) -> dict[str, int]:
        return sizes["counts"] or {name: max(50, n * 256 // max(size, 256)) for name, n in PER_ROUND.items()}

    cases = {str(size): everywhere({"capacity": capacity, "batch": size, **counts(size)}) for size in sizes["batches"]}
    return {"capacity": capacity, "sizes": measure(cases, libraries, rounds)}


def slices(libraries: Mapping[str, Worker], sizes: Mapping[str, Any], rounds: int) -> Results:
    """Measure buffers of slices by layout, then by steps stored and capacity.

    One large buffer is in memory at a time, beside the smallest; rounds alternate between both.
    """
    few, *larger = (slices_case(stored, capacity, sizes) for stored, capacity in sizes["slices"])
    results: Results = {}
    for layout in sizes["layouts"]:
        results[layout] = {"cases": {}, "growth": {}}
        for pair in ([few, more] for more in larger):
            cases = {name: ("slices", libraries_of(same, LAYOUTS[layout])) for name, same in pair}
            part = measure(cases, libraries, rounds)
            (few_name, _), (name, _) = pair
            results[layout]["growth"][name] = {
                mode: report.ratio(*(part[case]["rlkit"][mode]["total"] for case in (name, few_name)))
                for mode in ("jit", "python")
            }
            for case, by_library in part.items():
                first = results[layout]["cases"]
                first.setdefault(case, by_library)  # the smallest is measured twice; the first counts
    return results


def slices_case(stored: int, capacity: int, sizes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    same = {"stored": stored, "capacity": capacity, "slices": SLICES, "slice_len": SLICE_LEN}
    return f"{stored}/{capacity}", same | sizes["slice_counts"]


def libraries_of(same: dict[str, Any], ours: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Arguments of a buffer of slices by library; TorchRL's is slow, and has counts of its own."""
    theirs = {name: value for name, value in same.items() if name not in PER_ROUND}
    return {"rlkit": same | ours, "torchrl": theirs | {"rows": ADDED}}


def trees(libraries: Mapping[str, Worker], sizes: Mapping[str, Any], rounds: int) -> Results:
    """Measure trees by leaves, batch size and fan-out."""
    grid = product(sizes["trees"], sizes["tree_batches"], sizes["fanouts"])
    cases = {
        f"{leaves}/{size}/{fanout}": ("trees", {"rlkit": {"leaves": leaves, "batch": size, "fanout": fanout}})
        for leaves, size, fanout in grid
    }
    return measure(cases, libraries, rounds)


PARTS = {"prioritized": prioritized, "batch": batch, "slices": slices, "trees": trees}
NEEDED = {"prioritized": LIBRARIES, "batch": LIBRARIES, "slices": ("rlkit", "torchrl"), "trees": ("rlkit",)}


def worker(name: str, library: str, python: Path | str, *, gpu: bool) -> Worker:
    command, environment = [python, HERE / "worker.py", library], {}
    if name == one_thread(library):
        command, environment = [*command, "--inline"], {"NPROC": "1"}  # XLA's number of threads
    return Worker(name, command, environment | ({} if gpu else {"JAX_PLATFORMS": "cpu"}))


def run(parts: Sequence[str], sizes: Mapping[str, Any], rounds: int, options: argparse.Namespace) -> None:
    results = {} if options.quick else report.read(options.results, "replay")
    needed = {library: None for part in parts for library in NEEDED[part]}
    peer_python = options.peer_python
    if len(needed) > 1 and peer_python is None:
        peer_python = peers.python(options.peer_env, PEERS | {"jax": version("jax")})  # the same compiler
    with ExitStack() as stack:
        started = []
        for library in needed:
            more = [one_thread(library)] if len(needed) > 1 and library in WITH_XLA else []
            python = sys.executable if library == "rlkit" else peer_python
            started += [worker(name, library, python, gpu=options.gpu) for name in (library, *more)]
        running = {one.name: stack.enter_context(one) for one in started}
        for part in parts:
            made = report.provenance() | {"versions": {name: running[name].versions for name in needed}}
            name = "trees_gpu" if options.gpu else part
            results[name] = {"found": PARTS[part](running, sizes, rounds), "rounds": rounds, "made": made}
            report.write(options.results, "replay", results, rendering.render)
    plotting.draw(results, options.results / "replay.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["prioritized", "batch", "slices"])
    parser.add_argument("--gpu", action="store_true", help="the trees, on the accelerator; needs no peers")
    parser.add_argument("--quick", action="store_true", help="small sizes and two rounds, to see that everything runs")
    parser.add_argument("--rounds", type=int, help=f"timed rounds ({FULL['rounds']})")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/replay")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has the peers; else --peer-env is used")
    parser.add_argument("--results", type=Path, help="where replay.json, .md and .png go (beside this script)")
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    if options.gpu:
        sizes = sizes | {"trees": sizes["gpu_trees"]}
    if options.results is None:
        options.results = Path(tempfile.gettempdir()) / "rlkit-replay" if options.quick else HERE
    run(["trees"] if options.gpu else options.parts, sizes, options.rounds or sizes["rounds"], options)


if __name__ == "__main__":
    main()

"""Training speed and compile time of PPO on CartPole-v1, against rejax 0.1.3.

Each library trains in a process of its own and waits while the other one works; rounds alternate. What is timed is the
whole training, rollouts and updates, as one compiled program; compile time is apart.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import ppo_worker
import report

REJAX, REJAX_GYMNAX = "0.1.3", "0.0.9"
SPEED_TARGET = {4: 1.2, 64: 1.8, 2048: 1.8}  # times rejax's steps per second
COMPILE_TARGET = 0.6  # of rejax's compile time
STEPS = 300_000  # of a round, about: one to two seconds on two cores


class Peer:
    """A worker process of one library, which is compiled and run when asked."""

    def __init__(self, library: str, python: Path):
        worker = Path(__file__).with_name("ppo_worker.py")
        environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        self.library = library
        self.process = subprocess.Popen(
            [python, worker, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> "Peer":
        self.versions = self._answer()["versions"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, command: str, arguments: Any) -> dict[str, Any]:
        print(json.dumps({command: arguments}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker of {self.library} ended: exit code {self.process.wait()}; see above")
        return json.loads(line)


def peer_python(folder: Path) -> Path:
    """The interpreter of rejax's virtual environment, which is made where it is missing or unfinished."""
    python = folder / "bin" / "python"
    check = f"from importlib.metadata import version; assert version('rejax') == {REJAX!r}"
    if python.exists() and subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL).returncode == 0:
        return python
    packages = [f"rejax=={REJAX}", f"gymnax=={REJAX_GYMNAX}", f"jax=={version('jax')}"]  # the same compiler
    print(f"making {folder} with {', '.join(packages)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def measure(peers: list[Peer], num_envs: int, *, rounds: int, compilations: int) -> dict[str, Any]:
    """Both libraries at one size."""
    batch = num_envs * ppo_worker.NUM_STEPS
    updates = max(2, STEPS // batch)
    compiled: dict[str, list[dict[str, float]]] = {peer.library: [] for peer in peers}
    for _ in range(compilations):
        for peer in peers:
            compiled[peer.library].append(peer.ask("compile", [num_envs, updates]))
    runs: dict[str, list[float]] = {peer.library: [] for peer in peers}
    for seed in range(rounds + 1):
        for peer in peers:
            done = peer.ask("run", seed)
            assert done["steps"] == updates * batch, f"{peer.library} made {done['steps']} steps, not {updates * batch}"
            if seed:  # the first round warms up
                runs[peer.library].append(done["seconds"])
    result = {
        library: {
            "steps_per_second": updates * batch / statistics.median(seconds),
            "seconds": seconds,
            "compile_seconds": statistics.median(one["seconds"] for one in compiled[library]),
            "compilations": compiled[library],
        }
        for library, seconds in runs.items()
    }
    ours, theirs = ([one["seconds"] for one in compiled[name]] for name in ("rlkit", "rejax"))
    return {
        "steps": updates * batch,
        **result,
        "speed_ratio": report.ratio(runs["rejax"], runs["rlkit"]),
        "compile_ratio": report.ratio(ours, theirs),
        "made": report.made() | {"versions": {peer.library: peer.versions for peer in peers}},
    }


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for size, found in sorted(results.items(), key=lambda item: int(item[0])):
        speed, compilation, target = found["speed_ratio"], found["compile_ratio"], SPEED_TARGET.get(int(size))
        rows.append(
            [
                size,
                *(f"{found[library]['steps_per_second']:,.0f}" for library in ("rlkit", "rejax")),
                report.spread(speed),
                "" if target is None else f">= {target} {report.verdict(speed['median'] >= target)}",
                *(f"{found[library]['compile_seconds']:.1f}" for library in ("rlkit", "rejax")),
                report.spread(compilation),
                f"<= {COMPILE_TARGET} {report.verdict(compilation['median'] <= COMPILE_TARGET)}",
            ]
        )
    header = ["envs", "rlkit steps/s", "rejax steps/s", "ratio", "target"]
    header += ["rlkit compile s", "rejax compile s", "ratio", "target"]
    last = list(results.values())[-1]["made"]
    ours, theirs = (", ".join(f"{k} {v}" for k, v in last["versions"][name].items()) for name in ("rlkit", "rejax"))
    machine = last["machine"]
    return (
        "# PPO on CartPole-v1 against rejax\n\n"
        f"{ppo_worker.NUM_STEPS} steps, {ppo_worker.NUM_EPOCHS} epochs, {ppo_worker.NUM_MINIBATCHES} minibatches, "
        "separate 2x64 tanh networks. Medians over alternating rounds; ratios of the medians, with the least and the "
        "greatest ratio of a round. Compile time is that of tracing, lowering and compiling the whole training, "
        "without a cache.\n\n"
        + report.table(header, rows)
        + f"\n{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}; {last['date']}. "
        f"rlkit: {ours}. rejax: {theirs}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=sorted(SPEED_TARGET), help="sizes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds a size (%(default)s)")
    parser.add_argument("--compilations", type=int, default=3, help="of each library a size (%(default)s)")
    parser.add_argument("--peer-env", type=Path, default=Path.home() / ".cache/rlkit/peers/rejax")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has rejax; else --peer-env is used")
    parser.add_argument("--results", type=Path, default=report.HERE, help="where ppo.json and ppo.md go")
    options = parser.parse_args()
    python = options.peer_python or peer_python(options.peer_env)
    results = report.read(options.results, "ppo")
    with Peer("rlkit", Path(sys.executable)) as ours, Peer("rejax", python) as theirs:
        assert theirs.versions.get("rejax") == REJAX, f"{python} has rejax {theirs.versions.get('rejax')}"
        for num_envs in options.envs:
            results[str(num_envs)] = measure(
                [ours, theirs], num_envs, rounds=options.rounds, compilations=options.compilations
            )
            report.write(options.results, "ppo", results, render)


if __name__ == "__main__":
    main()

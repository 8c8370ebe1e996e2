"""What the benchmarks share: the machine they ran on, fair rounds, and their files."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("rlkit-jax", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy")


def made() -> dict[str, Any]:
    """When and on what a result came about."""
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine(), "versions": versions(PACKAGES)}


def machine() -> dict[str, Any]:
    """The cores that this process may use, and what they are."""
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu(), "python": platform.python_version()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def says(made: Mapping[str, Any]) -> str:
    """One line about the machine, the versions and the date."""
    known = ", ".join(f"{name} {number}" for name, number in made["versions"].items() if number)
    machine = made["machine"]
    return f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}, {known}; {made['date']}."


def interleaved(functions: Mapping[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call: in every round each function is called once, in turn, with the round's number.

    What disturbs the machine for longer than a round disturbs all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function(index)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """The ratio of two medians, and the least and the greatest ratio within a round."""
    by_round = [a / b for a, b in zip(over, under, strict=True)]
    return {"median": statistics.median(over) / statistics.median(under), "min": min(by_round), "max": max(by_round)}


def spread(ratio: Mapping[str, float], digits: int = 2) -> str:
    return f"{ratio['median']:.{digits}f} ({ratio['min']:.{digits}f} to {ratio['max']:.{digits}f})"


def verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "**missed**"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def read(folder: Path, name: str) -> dict[str, Any]:
    """The results that NAME.json holds; empty where there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: Path, name: str, results: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str]) -> None:
    """NAME.json, and as NAME.md what `render` makes of it, which is printed, too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    markdown = render(results)
    (folder / f"{name}.md").write_text(markdown)
    print(markdown)

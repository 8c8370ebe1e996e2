"""Result files of the benchmarks, the machine and versions of a result, alternating rounds, Markdown tables."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parents[1]
PACKAGES = ("rlkit-jax", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy")


def provenance() -> dict[str, Any]:
    """Date, machine and versions of a result."""
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine(), "versions": versions(PACKAGES)}


def machine() -> dict[str, Any]:
    """Number of cores that this process may use, their model, and the version of Python."""
    return {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu(), "python": platform.python_version()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Version of each package; None where it is not installed, nor, as rlkit may be, imported from a checkout."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = getattr(sys.modules.get(name.removesuffix("-jax")), "__version__", None)
    return found


def provenance_line(provenance: Mapping[str, Any]) -> str:
    """One line with the machine, the versions, which may be those of several processes by name, and the date."""
    of_processes, own = {}, {}
    for name, value in provenance["versions"].items():
        (of_processes if isinstance(value, Mapping) else own)[name] = value
    parts = [f"{machine_name(provenance['machine'])}", *_numbers(own)]
    parts = [", ".join(parts), *(f"{name}: {', '.join(_numbers(value))}" for name, value in of_processes.items())]
    return f"{'; '.join([*parts, provenance['date']])}."


def provenance_lines(made: Iterable[Mapping[str, Any]]) -> str:
    """The different lines of the provenances of several results."""
    return "".join(f"{line}\n" for line in sorted(set(map(provenance_line, made))))


def machine_name(machine: Mapping[str, Any]) -> str:
    """A machine as text: its cores and the version of Python."""
    return f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}"


def _numbers(versions: Mapping[str, str | None]) -> list[str]:
    return [f"{name} {number}" for name, number in versions.items() if number]


def interleaved(functions: Mapping[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, by function; each round calls every function once, with the number of the round.

    A disturbance of the machine that lasts longer than a round affects all functions.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for index in range(rounds):
        for name, function in functions.items():
            begin = time.perf_counter()
            function(index)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """Ratio of two medians, with the least and the greatest ratio within a round."""
    by_round = [a / b for a, b in zip(over, under, strict=True)]
    return {"median": statistics.median(over) / statistics.median(under), "min": min(by_round), "max": max(by_round)}


def spread(ratio: Mapping[str, float], digits: int = 2) -> str:
    """A ratio as text: median (least to greatest)."""
    return f"{ratio['median']:.{digits}f} ({ratio['min']:.{digits}f} to {ratio['max']:.{digits}f})"


def verdict(met: bool | None) -> str:
    """A target's verdict as text; empty for None, where there is no target."""
    return "" if met is None else "met" if met else "**missed**"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def read(folder: Path, name: str) -> dict[str, Any]:
    """Read the results in NAME.json; an empty dictionary if there is no such file."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: Path, name: str, results: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str]) -> None:
    """Write the results to NAME.json, and as the Markdown of `page` to NAME.md and to standard output.

    Where the program is killed meanwhile, the results of before are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.json.part"
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(folder / f"{name}.json")
    markdown = page(name, results, render, Path(sys.argv[0]))
    (folder / f"{name}.md").write_text(markdown)
    print(markdown)


def page(name: str, results: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str], program: Path) -> str:
    """The Markdown of `render`, followed by the command that made the results, and a link to NAME.json."""
    command = f"python benchmarks/{program.resolve().relative_to(BENCHMARKS).as_posix()}"
    return f"{render(results).rstrip()}\n\nMade by `{command}`; every number is in [{name}.json]({name}.json).\n"

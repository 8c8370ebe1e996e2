"""Tables of run.py's results."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from common import report

TITLES = {
    "correctness": "Agreement with the CPU",
    "environments": "PPO on CartPole-v1, by environments",
    "seeds": "PPO on CartPole-v1, seeds under vmap",
    "rejax": "PPO on CartPole-v1, whole trainings beside rejax 0.1.3's",
    "trees": "Segment trees",
    "slices": "Buffers of slices",
    "convolutions": "A convolution, value and gradients",
    "gradients": "Gradient steps from a full buffer",
    "loops": "Loops as CUDA graphs",
}
OPERATIONS = {
    "trees": ("jit sample", "jit write", "jit total"),
    "slices": ("jit add", "jit sample", "jit total", "python total"),
}
NOTES = {
    "correctness": "The same arrays on both devices, matrix products in full precision. Integers and flags have to be "
    "equal, float arrays within a share of the expected array's norm.",
    "trees": "µs of a batch, inside of a scan: draws, writes, and both.",
    "loops": "Gradient steps of DQN and SAC, environment steps of PPO on CartPole-v1.",
    "slices": "µs for 256 steps added and 256 slices of 4 drawn: inside of a scan, and as called from Python.",
}


def render(results: Mapping[str, Any]) -> str:
    """Markdown of all parts."""
    text = "# rlkit on an accelerator\n\nMedians over rounds that alternate between the cases of a table, with the "
    text += "least and the greatest. Compile times are apart.\n"
    for part, title in TITLES.items():
        if part not in results:
            continue
        result = results[part]
        text += f"\n## {title}\n\n"
        text += f"{NOTES[part]}\n\n" if part in NOTES else ""
        text += TABLES.get(part, rates)(part, result["cases"]) if result["cases"] else ""
        text += f"\n{result['ended']}\n" if result.get("ended") else ""
        made = result.get("made")
        text += f"\n{made['device']}; {report.provenance_line(made)}\n" if made else ""
    return text


def agreement(part: str, cases: Mapping[str, Any]) -> str:
    header = ["program", "unequal integers", "largest error", "of", "allowed", ""]
    rows = []
    for name, case in cases.items():
        if "error" not in case:
            rows.append([name, case["left out"], "", "", "", report.verdict(case.get("met"))])
            continue
        unequal = ", ".join(case["unequal"]) or "none"
        error = [f"{case['error']:.1e}", case["of"], f"{case['rtol']:.0e}", report.verdict(case["met"])]
        rows.append([name, unequal, *error])
    return report.table(header, rows)


def rates(part: str, cases: Mapping[str, Any]) -> str:
    """A row a case: compile time, and the amount of work a second."""
    units = {case["unit"] for case in cases.values() if "unit" in case}
    header = ["case", "compile s", f"{min(units) if len(units) == 1 else 'steps'} a second", "rounds", ""]
    rows = []
    for name, case in cases.items():
        compiled = f"{case['compile']:.1f}" if "compile" in case else ""
        calls = case.get("seconds", {}).get("call", [])
        rate = spread([case["amount"] / seconds for seconds in calls], 1.0)
        rows.append([name, compiled, rate, len(calls) or "", case.get("left out") or report.verdict(case.get("met"))])
    return report.table(header, rows)


def times(part: str, cases: Mapping[str, Any]) -> str:
    """A row a case: microseconds of each operation."""
    header = ["case", "first run s", *OPERATIONS[part], "rounds", ""]
    rows = []
    for name, case in cases.items():
        seconds = case.get("seconds", {})
        first = f"{case['first run']:.1f}" if "first run" in case else ""
        cells = [spread(seconds.get(operation, []), 1e6) for operation in OPERATIONS[part]]
        note = case.get("left out", "")
        if case.get("scaled", 1) > 1:
            note = f"scaled down from {case['wanted']} to fit the memory. {note}"
        rows.append([name, first, *cells, len(next(iter(seconds.values()), [])) or "", note])
    return report.table(header, rows)


def spread(values: Sequence[float], factor: float) -> str:
    """Median (least to greatest) of numbers, each times a factor."""
    if not values:
        return ""
    numbers = (statistics.median(values), min(values), max(values))
    scaled = [factor * number for number in numbers]
    middle, low, high = (f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in scaled)
    return f"{middle} ({low} to {high})"


TABLES = {"correctness": agreement, "trees": times, "slices": times}

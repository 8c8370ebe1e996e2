"""Tables of run.py's results."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common import report

NAMES_AND_COLORS = {
    "rlkit": ("rlkit", "#3465a4"),
    "flashbax": ("flashbax", "#d9822b"),
    "cpprb": ("cpprb", "#4e9a5d"),
    "torchrl": ("TorchRL", "#b5484f"),
}
MODES = {"jit": "In one jitted scan", "python": "As called from Python"}
SMALL, MIDDLE, LARGE = (str(2**k) for k in (14, 20, 23))
MANY = "346000000/600000000"
PRIORITIZED = ("add", "sample", "update")
THREAD = (
    "rlkit and flashbax have one thread of XLA for that (`NPROC=1` in the environment) and compute on the thread of "
    "the caller (`jax.config.update('jax_cpu_enable_async_dispatch', False)`); with JAX's own settings, each call "
    "wakes other threads."
)
RATIO = "the ratio of the medians, with the least and the greatest of a round"

Results = Mapping[str, Any]
Path3 = tuple[str, str, str]  # case, library, mode ("one call" for a cycle in one call from Python)


def totals(results: Results, at: Path3) -> list[float] | None:
    case, library, mode = at
    measured = results.get(case, {}).get(library, {})
    return measured.get("python", {}).get("one call") if mode == "one call" else measured.get(mode, {}).get("total")


def micro(seconds: Sequence[float]) -> str:
    value = 1e6 * statistics.median(seconds)
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def target(results: Results, what: str, over: Path3, under: Path3, rule: str, bound: float) -> list[list[str]]:
    """One row of the table of targets; no row if either was not measured."""
    both = totals(results, over), totals(results, under)
    if both[0] is None or both[1] is None:
        return []
    return [judged(what, report.ratio(both[0], both[1]), rule, bound)]


def judged(what: str, ratio: Mapping[str, float], rule: str, bound: float) -> list[str]:
    met = ratio["median"] <= bound if rule == "<=" else ratio["median"] >= bound
    digits = 2 if ratio["median"] < 100 else 0
    return [what, report.spread(ratio, digits), f"{rule} {bound:,}", report.verdict(met)]


def prioritized_targets(results: Results) -> list[list[str]]:
    def ours(size: str, mode: str) -> Path3:
        return (size, "rlkit", mode)

    rows = []
    for case, bound in ((SMALL, 1.0), (MIDDLE, 0.7)):
        what = f"jit, {size(case)}: rlkit / flashbax"
        rows += target(results, what, ours(case, "jit"), (case, "flashbax", "jit"), "<=", bound)
    return [
        *rows,
        *target(results, "jit, rlkit: 2^23 / 2^14", ours(LARGE, "jit"), ours(SMALL, "jit"), "<=", 4),
        *(
            row
            for mode, called in (("python", "Python"), ("one call", "Python, a cycle in one call"))
            for library, bound in (("cpprb", 2), ("torchrl", 3))
            for row in target(
                results,
                f"{called}, 2^20: {NAMES_AND_COLORS[library][0]} / rlkit",
                (MIDDLE, library, "python"),
                ours(MIDDLE, mode),
                ">=",
                bound,
            )
        ),
    ]


def slices_targets(results: Results) -> list[list[str]]:
    rows = []
    for layout, part in results.items():
        for mode, ratio in part["growth"].get(MANY, {}).items():
            what = f"{layout}, {mode.replace('python', 'Python')}, rlkit: 346M of 600M / 5M of 6M"
            rows.append(judged(what, ratio, "<=", 3))
        for mode, called in (("python", "Python"), ("one call", "Python, both in one call")):
            what = f"{layout}, {called}, 346M of 600M: TorchRL / rlkit"
            rows += target(part["cases"], what, (MANY, "torchrl", "python"), (MANY, "rlkit", mode), ">=", 1000)
    return rows


def size(case: str) -> str:
    """A case as text: 2^20, or 5M of 600M."""
    if "/" in case:
        stored, capacity = (f"{int(n) / 1e6:g}M" for n in case.split("/"))
        return f"{stored} of {capacity}"
    power = int(case).bit_length() - 1
    return f"2^{power}" if int(case) == 2**power and power > 9 else case


def operations(results: Results, header: str, names: Sequence[str], mode: str) -> str:
    """Table of every library's operations by size, and its total over rlkit's; for scans also the error of the root."""
    rows = []
    for case, by_library in results.items():
        ours = totals(results, (case, "rlkit", mode))
        for library, measured in by_library.items():
            if mode not in measured:
                continue
            seconds = measured[mode]
            times = "" if library == "rlkit" else report.spread(report.ratio(seconds["total"], ours))
            cells = [micro(seconds[name]) for name in (*names, "total")]
            if mode == "python":
                default = measured.get("default", {})
                last = [
                    micro(of[name]) if name in of else ""
                    for of, name in ((seconds, "one call"), (default, "total"), (default, "one call"))
                ]
            else:
                last = [micro(seconds["independent"]), f"{measured['check']['error']:.0e}"]
            rows.append([size(case), NAMES_AND_COLORS[library][0], *cells, times, *last])
    columns = [header, "library", *(f"{name} us" for name in names)]
    columns += ["total us", "times rlkit's"]
    calls = ["in one call us", "with JAX's own settings us", "in one call with these us"]
    columns += calls if mode == "python" else ["independent us", "error of the root"]
    return report.table(columns, rows)


def prioritized_text(part: Results) -> str:
    results = part["found"]
    return (
        "## Prioritized: add 1, sample 256, update 256\n\n"
        "A full buffer with distinct priorities; 42 bytes a step; us a cycle.\n\n"
        + report.table(["target", "measured", "bound", ""], prioritized_targets(results))
        + f"\n### {MODES['jit']}\n\n"
        "Totals are compared with the float64 sum of the leaves after the last round. rlkit also keeps the minimum, "
        "for the weights, and the maximum, for new items, and both are asserted to be exact. In `total`, the new "
        "priorities depend on the whole sample. In `independent` they do not; unless the library orders the reads of "
        "the sample before the writes of the update, XLA then copies the tree in every cycle.\n\n"
        + operations(results, "capacity", PRIORITIZED, "jit")
        + f"\n### {MODES['python']}\n\n"
        f"Each operation is a call that is waited for. {THREAD} Pure functions compose: in one call, one jitted "
        "function of the caller's own writes the last sample's priorities, adds a step and draws the next sample.\n\n"
        + operations(results, "capacity", PRIORITIZED, "python")
        + provenance(part)
    )


def batch_text(part: Results) -> str:
    results = part["found"]["sizes"]
    return (
        f"## Prioritized, by batch size, at a capacity of {size(str(part['found']['capacity']))}\n\n"
        + operations(results, "batch", PRIORITIZED, "jit")
        + "\n"
        + operations(results, "batch", PRIORITIZED, "python")
        + provenance(part)
    )


def slices_text(part: Results) -> str:
    results = part["found"]
    text = (
        "## Slices: add 256 steps, sample 256 slices of 4\n\n"
        "Four bytes a step; episodes of 200 steps on average, geometric. TorchRL holds one stream in one dimension and "
        "draws an episode first, then a slice in it. From Python, each operation is a call that is waited for. "
        f"{THREAD} The smallest buffer is measured anew beside each larger one: its row has the first measurement, and "
        "a ratio to it the one of the same rounds.\n\n"
        + report.table(["target", "measured", "bound", ""], slices_targets(results))
    )
    for layout, measured in results.items():
        cases, growth = measured["cases"], measured["growth"]
        rows = [[size(case), *scanned(by["rlkit"]["jit"]), *grown(growth.get(case))] for case, by in cases.items()]
        columns = ["stored", "rlkit, in one jitted scan: add us", "sample us", "both us"]
        columns += ["times the first's", "the same from Python"]
        text += f"\n### {layout}\n\n" + report.table(columns, rows)
        text += "\n" + operations(cases, "stored", ("add", "sample"), "python")
    return text + provenance(part)


def scanned(seconds: Mapping[str, Sequence[float]]) -> list[str]:
    return [micro(seconds[name]) for name in ("add", "sample", "total")]


def grown(growth: Mapping[str, Mapping[str, float]] | None) -> list[str]:
    return ["", ""] if growth is None else [report.spread(growth[mode]) for mode in MODES]


def trees_text(part: Results) -> str:
    rows = []
    for case, by_library in part["found"].items():
        leaves, batch, fanout = case.split("/")
        measured = by_library["rlkit"]
        cells = [micro(measured[mode][name]) for mode in MODES for name in ("sample", "write", "total")]
        rows.append([size(leaves), f"{int(batch):,}", fanout, *cells])
    columns = [f"{mode} {name} us" for mode in ("jit", "Python") for name in ("sample", "write", "both")]
    device = next(iter(part["found"].values()))["rlkit"]["check"]["device"]
    return (
        f"## Trees alone, on {device}\n\nSum, minimum and maximum; sample a batch, write a batch.\n\n"
        + report.table(["leaves", "batch", "fan-out", *columns], rows)
        + provenance(part)
    )


def provenance(part: Results) -> str:
    machine = part["made"]["machine"]
    known = "; ".join(
        f"{name}: " + ", ".join(f"{package} {number}" for package, number in versions.items())
        for name, versions in part["made"]["versions"].items()
    )
    cpu = f"{machine['cores']} cores ({machine['cpu']}), Python {machine['python']}"
    return f"\n{part['rounds']} rounds. {cpu}; {part['made']['date']}. {known}.\n\n"


TEXTS: dict[str, Callable[[Results], str]] = {
    "prioritized": prioritized_text,
    "batch": batch_text,
    "slices": slices_text,
    "trees": trees_text,
    "trees_gpu": trees_text,
}


def render(results: Results) -> str:
    return (
        "# Replay buffers\n\n"
        "Medians over rounds that alternate over libraries and sizes, each library in a process of its own. "
        f"A ratio is {RATIO}.\n\n"
        "![Cost against size](replay.png)\n\n"
        + "".join(text(results[name]) for name, text in TEXTS.items() if name in results)
    ).rstrip() + "\n"

"""Seconds until a browser has opened a report of many runs, from an empty profile each time.

One run of ppo/cartpole is trained; the runs of the report are copies of it whose returns are scaled by a factor each.
A page is loaded when its scripts have run, and drawn when every figure in the first window is there.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlkit.runs import load_config, train
from rlkit.runs.reports.report import report as write_report

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "tests" / "support"))  # for `browser`

from browser import CHROMIUM, DESKTOP, tab
from common import report

HERE = Path(__file__).resolve().parent
RUNS, SEEDS = 20, 5
TARGET = 2.0  # seconds until it is loaded

# Milliseconds since the page was asked for, when no figure in the window is missing.
DRAWN = """
new Promise((done) => {
  const missing = () => [...document.querySelectorAll(".plot")].some((plot) => {
    const { top, bottom } = plot.getBoundingClientRect();
    return bottom > 0 && top < innerHeight && !plot.querySelector(".main-svg");
  });
  const look = () => missing() ? requestAnimationFrame(look) : done(performance.now());
  look();
})
"""


def copies(folder: Path) -> list[Path]:
    """Runs of several seeds each."""
    trained = train(load_config("ppo/cartpole", {"num_seeds": SEEDS}), out=folder / "run", show=False)
    lines = [json.loads(text) for text in (trained.run / "metrics.jsonl").read_text().splitlines()]
    paths, rng = [], random.Random(0)
    for index in range(RUNS):
        path, factor = folder / f"run-{index}", rng.uniform(0.5, 1.0)
        shutil.copytree(trained.run, path, ignore=shutil.ignore_patterns("checkpoints"))
        scaled = [{**line, "return_mean": [x and factor * x for x in line["return_mean"]]} for line in lines]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scaled))
        paths.append(path)
    return paths


def opened(page: Path) -> tuple[float, float]:
    """Seconds until the page is loaded, and until its first window is drawn."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, tab(Path(profile)) as browser:
        browser.view(DESKTOP)
        browser.open(page.as_uri())
        drawn = browser.evaluate(DRAWN)
        loaded = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        assert browser.errors == [], browser.errors
        return loaded / 1000, drawn / 1000


def measure(repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        paths = copies(Path(folder))
        begin = time.perf_counter()
        page = write_report(paths, Path(folder) / "report.html").path
        seconds = time.perf_counter() - begin
        loaded, drawn = zip(*(opened(page) for _ in range(repeats)), strict=True)
        size = page.stat().st_size / 1e6
    return {"written": seconds, "megabytes": size, "loaded": loaded, "drawn": drawn, "made": report.provenance()}


def render(results: Mapping[str, Any]) -> str:
    rows = []
    for name, target in (("loaded", TARGET), ("drawn", None)):
        seconds = results[name]
        median = statistics.median(seconds)
        verdict = f"< {target:g} {report.verdict(median < target)}" if target else ""
        rows.append([name, f"{median:.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}", verdict])
    return (
        "# A report in a browser\n\n"
        f"`rlkit report` of {RUNS} runs of {SEEDS} seeds, {results['megabytes']:.1f} MB, written in "
        f"{results['written']:.1f} s; opened by headless Chromium with an empty profile, {len(results['loaded'])} "
        "times. Loaded: its scripts have run. Drawn: the figures of the first window are there.\n\n"
        + report.table(["", "seconds, median", "least to greatest", "target"], rows)
        + f"\n{report.provenance_line(results['made'])}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="browsers that open it (%(default)s)")
    parser.add_argument("--results", type=Path, default=HERE, help="where opening.json and opening.md go")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("this benchmark needs Chromium or Chrome on the path")
    report.write(options.results, "opening", measure(options.repeats), render)


if __name__ == "__main__":
    main()

"""Tables of benchmarks/ are what their programs make from the JSON files beside them."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_scripts import BENCHMARKS, PROGRAMS, loaded

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PROGRAMS, reason="a source distribution has no benchmarks"),
]

RESULTS = sorted(path.relative_to(BENCHMARKS).with_suffix("").as_posix() for path in BENCHMARKS.glob("*/*.json"))


def program_of(result: str) -> str:
    """The program that makes a result: the one of its name, else the folder's run.py."""
    return f"{result}.py" if (BENCHMARKS / f"{result}.py").exists() else f"{Path(result).parent}/run.py"


def test_every_folder_has_results():
    folders = {path.parent.name for path in BENCHMARKS.glob("*/run.py")} - {"against"}  # prints, and stores nothing
    assert {Path(result).parent.name for result in RESULTS} == folders


@pytest.mark.parametrize("result", RESULTS)
def test_tables_are_made_from_the_json(result):
    path, program = BENCHMARKS / result, program_of(result)
    found = json.loads(path.with_suffix(".json").read_text())
    with loaded(program) as script:
        render = script.rendering.render if hasattr(script, "rendering") else script.render
        expected = script.report.page(path.name, found, render, BENCHMARKS / program)
    assert path.with_suffix(".md").read_text() == expected
    assert f"`python benchmarks/{program}`" in expected


def links(text: str) -> Iterator[str]:
    for part in text.split("](")[1:]:
        yield part.partition(")")[0].partition("#")[0]


@pytest.mark.parametrize("result", ["learning/learning", "learning/minatar"])
def test_rows_link_their_configs_and_the_raw_data(result):
    path = BENCHMARKS / f"{result}.md"
    found = [*links(path.read_text())]
    assert f"{path.stem}.json" in found
    configs = [link for link in found if link.startswith("../../configs/")]
    rows = json.loads(path.with_suffix(".json").read_text())
    if path.stem == "minatar":
        rows = [label for of_game in rows.values() for label in of_game if not label.startswith("rejax")]
    assert len(configs) == len(rows)
    assert all((path.parent / link).exists() for link in found)


def test_the_figures_of_the_readme_are_those_of_the_json():
    def read(result: str) -> Any:
        return json.loads((BENCHMARKS / f"{result}.json").read_text())

    prioritized = {
        name: statistics.median(of["jit"]["total"])
        for name, of in read("replay/replay")["prioritized"]["found"][str(2**20)].items()
        if "jit" in of
    }
    measured = {
        "startup": statistics.median(read("startup/startup")["seconds"]["cold"]),
        "ppo": read("ppo/ppo")["64"]["speed_ratio"]["median"],
        "replay": prioritized["rlkit"] / prioritized["flashbax"],
    }
    lines = (BENCHMARKS.parent / "README.md").read_text().splitlines()
    for folder, value in measured.items():
        (line,) = (line for line in lines if line.endswith(f"| `python benchmarks/{folder}/run.py` |"))
        stated = line.split(" | ")[1]
        digits = len(stated.partition(".")[2])
        assert f"{value:.{digits}f}" == stated

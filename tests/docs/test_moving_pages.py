"""The pages of docs/moving: their keys and defaults are those of the code, and their scripts run.

A page has one or two blocks of Python: the script of the other library, if it is a package, and then ours. A test of
the other library runs where that is installed.
"""

import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

import rlkit
from rlkit import agents
from rlkit.runs.config.schema import schema

FOLDER = Path(__file__).parents[2] / "docs/moving"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
PACKAGES = {  # of which a page has a script: the module, and the classes whose arguments are in its tables
    "flashbax": ("flashbax", {}),
    "stable-baselines3": ("stable_baselines3", {"PPO": "PPO", "DQN": "DQN", "SAC": "SAC", "TD3": "TD3"}),
}
LEARNED = ("mean_return", 60)  # a script's result, and its least value: random actions reach about 20 in CartPole-v1
RESULTS = {"flashbax": ("share", 0.8)}  # those of other scripts
COMMON_KEYS = set(schema("ppo").models[0].model_fields)
pytestmark = pytest.mark.skipif(not PAGES, reason="a source distribution has no docs/")


class Row(NamedTuple):
    """A row of a table: the section's title, and the cells by their column."""

    section: str
    theirs: str
    their_default: str | None
    ours: str
    our_default: str | None


def rows(page: str) -> Iterator[Row]:
    section, columns = "", []
    for line in (FOLDER / f"{page}.md").read_text().splitlines():
        if line.startswith("## "):
            section, columns = line.removeprefix("## "), []
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells
        elif not set(line) <= set("|- "):
            assert len(cells) == len(columns), line
            here = columns.index("rlkit")
            defaults = (cells[1], cells[3]) if columns.count("default") == 2 else (None, None)
            yield Row(section, cells[0], defaults[0], cells[here], defaults[1])


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.DOTALL)


def is_name(word: str, section: str) -> bool:
    """True for a key of the agent that the section is about; in other sections for any key, and any name in rlkit."""
    key = word.split(":")[0]
    if section.lower() in agents.names():
        return key in schema(section.lower()).fields
    if key in COMMON_KEYS or any(key in schema(name).fields for name in agents.names()):
        return True
    try:
        functools.reduce(getattr, word.split("(")[0].split("."), rlkit)
    except AttributeError:
        return False
    return True


def is_default(cell: str, default: object) -> bool:
    """True where a cell states a default, in the spelling of YAML or of Python."""
    if default is None or isinstance(default, bool | str):
        return cell.lower() in ((str(default).lower(), "null") if default is None else (str(default).lower(),))
    return float(cell) == default


@pytest.mark.parametrize("page", PAGES)
def test_the_names_on_our_side_exist(page):
    named = [(row.section, word) for row in rows(page) for word in words(row.ours)]
    assert len(named) >= 5
    assert [(section, word) for section, word in named if not is_name(word, section)] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_defaults_on_our_side_are_those_of_the_code(page):
    wrong = []
    for row in rows(page):
        if row.our_default is None:
            continue
        (key,) = words(row.ours)
        field = schema(row.section.lower()).fields[key]
        if not (row.our_default == "" if field.is_required() else is_default(row.our_default, field.default)):
            wrong.append((row, field.default))
    assert wrong == []


def test_a_wrong_name_is_found():
    assert is_name("num_epochs", "PPO")
    assert is_name("runs.train", "Objects")
    assert not is_name("n_epochs", "PPO")
    assert not is_name("runs.learn", "Objects")
    assert not is_name("clip_eps", "DQN")


def test_a_wrong_default_is_found():
    assert is_default("3e-4", 0.0003)
    assert is_default("null", None)
    assert is_default("inf", float("inf"))
    assert not is_default("4", 10)
    assert not is_default("true", False)
    assert not is_default("mlp", "conv")


@pytest.mark.parametrize("page", PACKAGES)
def test_the_defaults_on_their_side_are_those_of_their_code(page):
    package, classes = PACKAGES[page]
    module = pytest.importorskip(package)
    wrong = []
    for row in rows(page):
        if row.their_default is None:
            continue
        owner = functools.reduce(getattr, classes[row.section].split("."), module)
        (name,) = words(row.theirs)
        if dataclasses.is_dataclass(owner):
            default = {field.name: field.default for field in dataclasses.fields(owner)}[name]
        else:
            default = inspect.signature(owner).parameters[name].default
        if not is_default(row.their_default, default):
            wrong.append((row, default))
    assert wrong == []


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_our_script_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        exec(compile(blocks(page)[-1], page, "exec"), names)
    name, least = RESULTS.get(page, LEARNED)
    assert names[name] > least


@pytest.mark.thorough
@pytest.mark.parametrize("page", PACKAGES)
def test_their_script_runs(page, tmp_path):
    pytest.importorskip(PACKAGES[page][0])
    theirs, _ = blocks(page)
    name, least = RESULTS.get(page, LEARNED)
    process = subprocess.run(
        [sys.executable, "-c", f"{theirs}\nprint(float({name}))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr
    assert float(process.stdout.split()[-1]) > least

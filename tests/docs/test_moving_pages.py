"""The pages of docs/moving: their keys and defaults are those of the code, and their scripts run.

A page has one or two blocks of Python: the script of the other library, if it is a package, and then ours. A test of
the other library runs where that is installed: here, or for the interpreter that RLKIT_PEER_PYTHON names.
"""

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import pytest
from doc_pages import blocks

import rlkit
from rlkit import agents
from rlkit.runs.config.schema import schema

FOLDER = Path(__file__).parents[2] / "docs/moving"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
PEER = os.environ.get("RLKIT_PEER_PYTHON", sys.executable)
PACKAGES = {  # with a script of theirs: its imports, and by the title of a section the class of its table's arguments
    "flashbax": ("import flashbax", {}),
    "purejaxrl-rejax": (
        "import rejax, importlib.metadata; assert importlib.metadata.version('gymnax') < '1'",
        {"PPO of rejax": "rejax.PPO", "DQN of rejax": "rejax.DQN"},
    ),
    "torchrl": (
        "from torchrl import objectives",
        {"PPO": "objectives.ClipPPOLoss", "DQN": "objectives.DQNLoss", "SAC": "objectives.SACLoss"},
    ),
    "stable-baselines3": (
        "import stable_baselines3 as sb3",
        {"PPO": "sb3.PPO", "DQN": "sb3.DQN", "SAC": "sb3.SAC", "TD3": "sb3.TD3"},
    ),
}
LEARNED = ("mean_return", 60, 500)  # a script's result and its bounds: random actions reach about 20 in CartPole-v1
RESULTS = {"flashbax": ("share", 0.8, 1.0), "torchrl": ("first_advantage", 7.2, 7.21)}  # those of other scripts
# Those of the other pages train PPO on CartPole-v1.
SCRIPTS = ("flashbax", "torchrl")
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


def agent_of(section: str) -> str:
    return section.split()[0].lower()


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_name(word: str, section: str) -> bool:
    """True for a key of the agent that the section is about; in other sections for any key, and any name in rlkit."""
    key = word.split(":")[0]
    if agent_of(section) in agents.names():
        return key in schema(agent_of(section)).fields
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
        if row.our_default is None or not row.ours:
            continue
        (key,) = words(row.ours)
        field = schema(agent_of(row.section)).fields[key]
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


def run_theirs(page: str, code: str, folder: Path) -> str:
    """The output of code that uses the page's library; skips the test where that is not installed."""
    imports = PACKAGES[page][0]
    run = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True, timeout=280)
    if run([PEER, "-c", imports]).returncode:
        pytest.skip(f"not installed: {imports}")
    process = run([PEER, "-c", f"{imports}\n{code}"])
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("page", [page for page, (_, classes) in PACKAGES.items() if classes])
def test_the_defaults_on_their_side_are_those_of_their_code(page, tmp_path):
    code = "import inspect, json\nprint(json.dumps({name: {key: value.default for key, value in "
    code += "inspect.signature(eval(name)).parameters.items()} for name in NAMES}, default=str))"
    classes = PACKAGES[page][1]
    defaults = json.loads(run_theirs(page, code.replace("NAMES", repr(list(classes.values()))), tmp_path))
    stated = [row for row in rows(page) if row.their_default is not None and row.section in classes]
    assert stated
    wrong = []
    for row in stated:
        default = defaults[classes[row.section]][words(row.theirs)[0]]
        if not is_default(row.their_default, default):
            wrong.append((row, default))
    assert wrong == []


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.thorough if page in SCRIPTS else pytest.mark.slow) for page in PAGES]
)
def test_our_script_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        exec(compile(blocks(FOLDER / f"{page}.md", "python")[-1], page, "exec"), names)
    name, least, most = RESULTS.get(page, LEARNED)
    assert least < names[name] <= most


@pytest.mark.thorough
@pytest.mark.parametrize("page", PACKAGES)
def test_their_script_runs(page, tmp_path):
    theirs, _ = blocks(FOLDER / f"{page}.md", "python")
    name, least, most = RESULTS.get(page, LEARNED)
    result = float(run_theirs(page, f"{theirs}\nprint(float({name}))", tmp_path).split()[-1])
    assert least < result <= most

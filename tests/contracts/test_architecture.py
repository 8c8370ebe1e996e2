"""The floors of the house, read from the imports of every file; no circles; small folders and small files."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from import_rules import circles, violations

from rlkit import agents

ROOT = Path(__file__).parents[2]


def sources(folder: str) -> dict[str, str]:
    """Path -> text of every Python file of a folder."""
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


SOURCES = sources("rlkit")

MAX_FILES = 18  # Python files in a folder
MAX_LINES = 450  # in a file
AGENT_FILES = [name[:-3].replace("/", ".") for name in SOURCES if re.fullmatch(r"rlkit/agents/[a-z]\w*\.py", name)]
OWN = {"Config", "Hyper"}  # classes that every algorithm's file defines
PARTS = ("State", "gradient_step", "update", "supports", "make")  # that it has, or borrows


@pytest.mark.parametrize("path", SOURCES)
def test_floors(path):
    assert violations(path, SOURCES[path]) == []


def test_no_file_imports_in_a_circle():
    assert circles(SOURCES) == []


def test_folders_of_runs_import_one_way():
    assert circles(SOURCES, "rlkit/runs/") == []


def test_folders_are_small():
    folders = [path.rpartition("/")[0] for path in SOURCES]
    assert {folder: n for folder in folders if (n := folders.count(folder)) > MAX_FILES} == {}


def test_files_are_short():
    files = SOURCES | sources("tests")
    assert {path: n for path, source in files.items() if (n := source.count("\n")) > MAX_LINES} == {}


def definition(module: str, name: str) -> str | None:
    """Module of the `class` or `def` statement that defines `name` of a module; None if it is neither."""
    value = getattr(importlib.import_module(module), name, None)
    return value.__module__ if inspect.isclass(value) or inspect.isfunction(value) else None


@pytest.mark.parametrize("module", AGENT_FILES)
def test_every_file_of_agents_is_an_algorithm(module):
    """A variant may borrow from the file of another algorithm whatever it has in common with it."""
    assert module.rpartition(".")[2] in agents.names()
    assert {name for name in OWN if definition(module, name) not in AGENT_FILES} == set()
    assert {name for name in PARTS if not hasattr(importlib.import_module(module), name)} == set()


def test_a_bound_or_borrowed_definition_is_reported():
    assert definition("rlkit.agents", "get") not in AGENT_FILES
    assert definition("rlkit.agents", "nothing") is definition("rlkit.agents", "__all__") is None


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("rlkit/ops/returns.py", "from rlkit.networks import mlp"),  # the same floor, another package
        ("rlkit/ops/returns.py", "from rlkit import agents"),
        ("rlkit/ops/returns.py", "from ..replay import uniform"),
        ("rlkit/ops/returns.py", "from .. import replay"),
        ("rlkit/ops/returns.py", "import rlkit"),
        ("rlkit/ops/returns.py", "from rlkit import load"),
        ("rlkit/types.py", "from rlkit.ops import returns"),
        ("rlkit/agents/ppo.py", "def f():\n    from rlkit.envs import make"),
        (
            "rlkit/agents/ppo.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rlkit.training.rollout",
        ),
        ("rlkit/agents/ppo.py", "import importlib\nimportlib.import_module('rlkit.training')"),
        ("rlkit/training/rollout.py", "from rlkit.runs import config"),
        ("rlkit/hosts/pool.py", "from rlkit import runs"),
        ("rlkit/runs/train.py", "from rlkit import cli"),
        ("rlkit/tools/extra.py", ""),  # no floor
        ("rlkit/__init__.py", "from rlkit.types import Env"),
        ("rlkit/training/rollout.py", "import time"),
        ("rlkit/training/rollout.py", "from os import path"),
        ("rlkit/training/rollout.py", "def f():\n    import matplotlib.pyplot as plt"),
        ("rlkit/envs/__init__.py", "import gymnax"),
        ("rlkit/envs/gymnax.py", "import pandas"),
        ("rlkit/envs/suites/brax.py", "library('pgx', 'pgx')"),  # rlkit.envs.adapter imports it
        ("rlkit/agents/ppo.py", "print(1)"),
        ("rlkit/agents/ppo.py", "with open('x') as file:\n    pass"),
        ("rlkit/agents/ppo.py", "import jax\njax.debug.print('x')"),
        ("rlkit/agents/ppo.py", "import jax\njax.config.update('jax_enable_x64', True)"),
        ("rlkit/training/rollout.py", "import jax\nkey = jax.random.key(0)"),
        ("rlkit/replay/uniform.py", "import numpy as np\nnp.save('x', 1)"),
        ("rlkit/networks/dense.py", "from jax.interpreters import mlir"),
        ("rlkit/runs/loop.py", "from jax._src import core"),
        ("rlkit/hosts/worker/main.py", "import jax"),
        ("rlkit/hosts/worker/main.py", "def f():\n    from rlkit.hosts import pool"),
    ],
)
def test_a_planted_violation_is_reported(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "rlkit/ops/returns.py",
            "import math\nimport jax.numpy as jnp\nfrom rlkit.types import Array\nfrom . import losses",
        ),
        ("rlkit/agents/ppo.py", "from rlkit.replay import uniform\nfrom rlkit import networks, ops\nimport optax"),
        ("rlkit/envs/gymnax.py", "def f():\n    import gymnax"),
        ("rlkit/envs/suites/pgx.py", "library('pgx', 'pgx')"),
        ("rlkit/runs/train.py", "import time\nimport rich\nfrom rlkit import __version__, training\nprint(open('x'))"),
        ("rlkit/__main__.py", "from rlkit.cli import main"),
        ("rlkit/_cpu/primitives.py", "from jax.interpreters import mlir"),
        ("rlkit/hosts/worker/main.py", "import os\nfrom rlkit.hosts.worker import wire"),
    ],
)
def test_an_allowed_import_is_not_reported(path, source):
    assert violations(path, source) == []


PACKAGE = {"rlkit/a/__init__.py": "from rlkit.a import b", "rlkit/a/b.py": "", "rlkit/a/c.py": "from rlkit.a import b"}


@pytest.mark.parametrize(
    ("changed", "circle"),
    [
        ({"rlkit/a/b.py": "from rlkit.a import c"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        ({"rlkit/a/b.py": "from rlkit.a.c import f"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        ({"rlkit/a/b.py": "import rlkit.a.c as c"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        ({"rlkit/a/b.py": "from . import c"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        ({"rlkit/a/b.py": "from .c import f"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        ({"rlkit/a/b.py": "def f():\n    from rlkit.a import c"}, ["rlkit/a/b.py", "rlkit/a/c.py"]),
        (
            {"rlkit/a/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rlkit.a import c"},
            ["rlkit/a/b.py", "rlkit/a/c.py"],
        ),
        ({"rlkit/a/b.py": "from rlkit.a import f"}, ["rlkit/a/__init__.py", "rlkit/a/b.py"]),
        ({"rlkit/a/b.py": "from rlkit import a"}, ["rlkit/a/__init__.py", "rlkit/a/b.py"]),
        (
            {"rlkit/a/b.py": "from rlkit import d", "rlkit/d.py": "from rlkit.a.c import f"},
            ["rlkit/a/b.py", "rlkit/a/c.py", "rlkit/d.py"],
        ),
    ],
)
def test_a_planted_circle_is_reported(changed, circle):
    assert circles(PACKAGE) == []
    assert circles(PACKAGE | changed) == [circle]


FOLDERS = {
    "rlkit/a/b/c.py": "from rlkit.a.d import e\nfrom rlkit.a.b import f",
    "rlkit/a/b/f.py": "",
    "rlkit/a/d/e.py": "",
    "rlkit/a/d/g.py": "from rlkit.a import h",
    "rlkit/a/h.py": "",
}


@pytest.mark.parametrize(
    ("changed", "circle"),
    [
        ({"rlkit/a/d/g.py": "from rlkit.a.b import f"}, ["rlkit/a/b", "rlkit/a/d"]),
        ({"rlkit/a/h.py": "def f():\n    from rlkit.a.d.e import i"}, ["rlkit/a/d", "rlkit/a/h.py"]),
        ({"rlkit/a/h.py": "from rlkit.a.b import f"}, ["rlkit/a/b", "rlkit/a/d", "rlkit/a/h.py"]),
    ],
)
def test_a_planted_circle_of_folders_is_reported(changed, circle):
    """No file imports itself there, and the files alone have no circle."""
    assert circles(FOLDERS, "rlkit/a/") == circles(FOLDERS | changed) == []
    assert circles(FOLDERS | changed, "rlkit/a/") == [circle]

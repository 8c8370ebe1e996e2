"""The floors of the house, read from the imports of every file; no circles; small folders and small files."""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rlkit import agents

ROOT = Path(__file__).parents[2]
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "rlkit").rglob("*.py"))}

FLOORS = {
    "names": 0,
    "spaces": 0,
    "types": 1,
    "_cpu": 2,
    "_mesh": 2,
    "ops": 3,
    "networks": 3,
    "replay": 4,
    "envs": 4,
    "agents": 5,
    "training": 6,
    "hosts": 7,
    "runs": 8,
    "cli": 9,
    "__main__": 10,
}
RIM = 7  # from here up files, clocks, printing and heavy imports are allowed
APART = {"agents": {"envs", "training"}}  # an agent's input is transitions, never an environment

# Below the rim: libraries that compute, and the parts of the standard library without effects.
LIBRARIES = {"jax", "jaxlib", "numpy", "flax", "optax", "chex", "pydantic", "annotated_types"}
ADAPTERS = {
    "rlkit/_cpu/switch.py": {"os"},  # a variable of the environment turns the tricks off
    "rlkit/envs/gymnax.py": {"gymnax"},
    "rlkit/envs/suites/brax.py": {"brax"},
    "rlkit/envs/suites/craftax.py": {"craftax"},
    "rlkit/envs/suites/jumanji.py": {"jumanji"},
    "rlkit/envs/suites/pgx.py": {"pgx"},
    "rlkit/envs/suites/playground.py": {"mujoco_playground"},
    "rlkit/envs/suites/xland.py": {"xminigrid"},
}
IMPURE = (
    {"asyncio", "concurrent", "multiprocessing", "selectors", "signal", "socket", "subprocess", "threading"}
    | {"glob", "io", "logging", "mmap", "os", "pathlib", "pickle", "shutil", "sqlite3", "tempfile", "http", "urllib"}
    | {"datetime", "time", "random", "secrets", "uuid", "builtins", "ctypes"}
)
IMPURE_CALLS = re.compile(
    r"(?:print|input|open|exec|eval|breakpoint)"
    r"|sys\.(?:stdout|stderr)\..*"
    r"|jax\.debug\..*|(?:jax\.(?:experimental\.)?)?(?:io_callback|pure_callback)"  # callbacks of compiled programs
    r"|jax\.config\..*|(?:jax\.)?random\.(?:key|PRNGKey)"  # settings and keys are the caller's
    r"|(?:np|numpy|jnp)\.(?:load|loadtxt|save|savez|savez_compressed|savetxt|fromfile|memmap)"
)


# Parts of JAX that may change without notice: only where the plain computation replaces them when they are missing.
UNSTABLE = re.compile(r"jax\._src|jax\.(?:extend|interpreters|lib)\b|jaxlib")
UNSTABLE_ROOM = "rlkit/_cpu/"
# A worker process of `hosts` starts without JAX.
WORKER_ROOM = "rlkit/hosts/worker/"
WORKER_LIBRARIES = {"numpy", "gymnasium", "cloudpickle", "ale_py"}
WORKER_MODULES = ("rlkit.hosts.worker", "rlkit.names")

MAX_FILES = 18  # Python files in a folder
MAX_LINES = 300  # in a file
LONG_FILES = {"rlkit/agents/ppo.py": "an algorithm is whole in its file, and this one has the most options"}
AGENT_FILES = [name[:-3].replace("/", ".") for name in SOURCES if re.fullmatch(r"rlkit/agents/[a-z]\w*\.py", name)]
ALGORITHM = {"Config", "Hyper", "State", "gradient_step", "update"}  # defined in an algorithm's file


def floor_name(path: str) -> str:
    """Key of FLOORS for a file: `rlkit/ops/returns.py` -> `ops`; `__init__` for the public face."""
    return path.removesuffix(".py").split("/")[1]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain of names, otherwise an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and (base := dotted(node.value)) else ""


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name (or empty) of each import, including those in functions and under TYPE_CHECKING."""
    folder = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
            "library",
        ):
            yield from ((node.lineno, str(arg.value), "") for arg in node.args[:1] if isinstance(arg, ast.Constant))


def violations(path: str, source: str) -> list[str]:
    """Breaches of the rules about imports and effects by the file at `path`, one line each."""
    tree = ast.parse(source)
    name = floor_name(path)
    if name == "__init__":  # the public face imports modules by their names in strings, when they are first used
        return [
            f"{path}:{line}: imports {module}"
            for line, module, _ in imports(path, tree)
            if module not in ("importlib", "typing")
        ]
    if name not in FLOORS:
        return [f"{path}: {name} has no floor"]
    pure, breaches = FLOORS[name] < RIM, []
    # `from rlkit import ops` names a module behind the dot; deeper ones belong to the same floor either way.
    modules = {
        (line, f"{module}.{imported}" if module == "rlkit" and imported else module)
        for line, module, imported in imports(path, tree)
    }
    for line, module in sorted(modules):
        top, _, rest = module.partition(".")
        other = rest.partition(".")[0]
        if UNSTABLE.match(module) and not path.startswith(UNSTABLE_ROOM):
            breaches.append(f"{path}:{line}: imports {module} outside of {UNSTABLE_ROOM}")
        elif path.startswith(WORKER_ROOM):
            allowed = top in sys.stdlib_module_names | WORKER_LIBRARIES or module.startswith(WORKER_MODULES)
            breaches += [] if allowed else [f"{path}:{line}: a worker imports {module}"]
        elif top == "rlkit" and other == "__version__" and not pure:
            continue
        elif top == "rlkit" and other not in FLOORS:
            breaches.append(f"{path}:{line}: imports {module}: import from the module where the name lives")
        elif top == "rlkit" and other != name and (FLOORS[other] >= FLOORS[name] or other in APART.get(name, ())):
            breaches.append(f"{path}:{line}: {name} (floor {FLOORS[name]}) imports {module} (floor {FLOORS[other]})")
        elif top != "rlkit" and pure:
            known = top in sys.stdlib_module_names - IMPURE or top in LIBRARIES | ADAPTERS.get(path, set())
            breaches += [] if known else [f"{path}:{line}: imports {module} below floor {RIM}"]
    for node in ast.walk(tree) if pure else ():
        if isinstance(node, ast.Call) and IMPURE_CALLS.fullmatch(call := dotted(node.func)):
            breaches.append(f"{path}:{node.lineno}: calls {call} below floor {RIM}")
    return breaches


def file_of(module: str, files: Mapping[str, str]) -> str | None:
    """Path of a module's file, `rlkit.a` -> `rlkit/a.py` or `rlkit/a/__init__.py`; None if there is no such file."""
    path = module.replace(".", "/")
    return next((file for file in (f"{path}.py", f"{path}/__init__.py") if file in files), None)


def circles(files: Mapping[str, str]) -> list[list[str]]:
    """Groups of files that import each other, directly or not (strongly connected components of the imports).

    `from rlkit.a import b` is an import of the file of `rlkit.a.b` if there is one, else of that of `rlkit.a`.
    """
    graph = {
        path: {
            target
            for _, module, name in imports(path, ast.parse(source))
            if (target := file_of(f"{module}.{name}", files) or file_of(module, files))
        }
        for path, source in files.items()
    }

    def reachable(start: str) -> set[str]:
        reached, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - reached
            reached |= new
            waiting += new
        return reached

    reached = {path: reachable(path) for path in graph}
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(map(sorted, groups))


@pytest.mark.parametrize("path", SOURCES)
def test_floors(path):
    assert violations(path, SOURCES[path]) == []


def test_no_file_imports_in_a_circle():
    assert circles(SOURCES) == []


def test_folders_are_small():
    folders = [path.rpartition("/")[0] for path in SOURCES]
    assert {folder: n for folder in folders if (n := folders.count(folder)) > MAX_FILES} == {}


def test_files_are_short_or_have_a_reason():
    long = {path: n for path, source in SOURCES.items() if (n := source.count("\n")) > MAX_LINES}
    assert {path: n for path, n in long.items() if path not in LONG_FILES} == {}
    assert set(LONG_FILES) <= set(long), "no longer a long file"


def definition(module: str, name: str) -> str | None:
    """Module of the `class` or `def` statement that defines `name` of a module; None if it is neither."""
    value = getattr(importlib.import_module(module), name, None)
    return value.__module__ if inspect.isclass(value) or inspect.isfunction(value) else None


@pytest.mark.parametrize("module", AGENT_FILES)
def test_every_file_of_agents_is_an_algorithm(module):
    """A variant may import a definition from the file of another algorithm, not from `common`, and binds no partial."""
    assert module.rpartition(".")[2] in agents.names()
    assert {name for name in ALGORITHM if definition(module, name) not in AGENT_FILES} == set()


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

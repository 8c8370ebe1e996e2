"""The floors of the house, read from the imports of every file, and what must not happen when rlkit is imported."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "rlkit").rglob("*.py"))

FLOORS = {
    "names": 0,
    "spaces": 0,
    "types": 1,
    "_cpu": 2,
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
APART = {"agents": {"envs", "training"}}  # an agent sees transitions, never an environment

# Below the rim: the libraries that compute, and the parts of the standard library that touch nothing outside.
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
    r"|jax\.debug\..*|(?:jax\.(?:experimental\.)?)?(?:io_callback|pure_callback)"  # no call leaves a compiled program
    r"|jax\.config\..*|(?:jax\.)?random\.(?:key|PRNGKey)"  # settings and keys are the caller's
    r"|(?:np|numpy|jnp)\.(?:load|loadtxt|save|savez|savez_compressed|savetxt|fromfile|memmap)"
)


def package(module: str) -> str:
    """The floor's name: `rlkit.ops.returns` -> `ops`; the public face itself -> ``."""
    return module.partition(".")[2].partition(".")[0]


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute chain of names, otherwise an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{base}.{node.attr}" if isinstance(node, ast.Attribute) and (base := dotted(node.value)) else ""


def imports(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and module of each import, those in functions and under TYPE_CHECKING too."""
    here = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*here[: len(here) + 1 - node.level], node.module or ""]).rstrip(".")
                if node.level
                else node.module
            )
            # `from rlkit import ops` names a module behind the dot; deeper ones belong to the same floor either way.
            yield from ((node.lineno, f"{base}.{name.name}" if base == "rlkit" else str(base)) for name in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
            "library",
        ):
            yield from ((node.lineno, arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant))


def violations(path: str, source: str) -> list[str]:
    """What the file at `path`, relative to the repository, does against the rules of the house; one line each."""
    tree = ast.parse(source)
    name = package(path.removesuffix(".py").replace("/", "."))
    if name == "__init__":  # the public face hands names on by their text and imports nothing of its own
        return [
            f"{path}:{line}: imports {module}"
            for line, module in imports(path, tree)
            if module not in ("importlib", "typing")
        ]
    if name not in FLOORS:
        return [f"{path}: {name} has no floor"]
    found = []
    for line, module in sorted(set(imports(path, tree))):
        top, other = module.split(".")[0], package(module)
        if top == "rlkit" and other == "__version__" and FLOORS[name] >= RIM:
            continue
        if top == "rlkit" and other not in FLOORS:
            found.append(f"{path}:{line}: imports {module}: import from the module where the name lives")
        elif top == "rlkit" and other != name and (FLOORS[other] >= FLOORS[name] or other in APART.get(name, ())):
            found.append(f"{path}:{line}: {name} (floor {FLOORS[name]}) imports {module} (floor {FLOORS[other]})")
        elif top != "rlkit" and FLOORS[name] < RIM:
            known = top in sys.stdlib_module_names - IMPURE or top in LIBRARIES | ADAPTERS.get(path, set())
            found += [] if known else [f"{path}:{line}: imports {module} below floor {RIM}"]
    if FLOORS[name] < RIM:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and IMPURE_CALLS.fullmatch(called := dotted(node.func)):
                found.append(f"{path}:{node.lineno}: calls {called} below floor {RIM}")
    return found


@pytest.mark.parametrize("path", FILES)
def test_floors(path):
    assert violations(path, (ROOT / path).read_text()) == []


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
    ],
)
def test_the_checker_sees_a_planted_violation(path, source):
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
    ],
)
def test_the_checker_accepts_what_is_allowed(path, source):
    assert violations(path, source) == []


HEAVY = ["jax", "jaxlib", "flax", "optax", "orbax", "gymnax", "gymnasium", "pandas", "seaborn", "matplotlib"]


def child(code: str) -> dict:
    """Runs `code`, which prints one JSON object as its only line, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "code",
    [
        "import rlkit; dir(rlkit)",
        "import rlkit.cli",
        "import contextlib, io, rlkit.cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "    rlkit.cli.main(['--help'])\n"
        "assert 'train' in out.getvalue()",
    ],
    ids=["import rlkit", "import rlkit.cli", "rlkit --help"],
)
def test_stays_light(code):
    loaded = child(f"{code}\nimport json, sys; print(json.dumps(dict.fromkeys(sys.modules)))")
    assert "rlkit" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "rlkit", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "train" in done.stdout


def test_nothing_happens_at_import():
    """Importing every module prints nothing, sets no environment variable and starts no backend."""
    seen = child(
        "import importlib, json, os, pkgutil\n"
        "import jax, optax, flax\n"  # JAX sets variables of its own
        "before = dict(os.environ)\n"
        "import rlkit\n"
        "names = [m.name for m in pkgutil.walk_packages(rlkit.__path__, 'rlkit.') if not m.name.endswith('__main__')]\n"
        "for name in names: importlib.import_module(name)\n"
        "from jax._src import xla_bridge\n"
        "after = dict(os.environ)\n"
        "changed = [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)]\n"
        "print(json.dumps(dict(names=names, changed=changed, backends=list(xla_bridge._backends))))"
    )
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in FILES}
    assert set(seen["names"]) == modules - {"rlkit", "rlkit.__main__"}
    assert seen["changed"] == []
    assert seen["backends"] == []


MACHINE = re.compile(
    r"/(?:home|root|Users|work|tmp)/\w"  # paths of one machine
    r"|(?:pypi|pythonhosted|anaconda|npmjs|jfrog|artifactory)\.\w"  # package registries
    r"|--(?:extra-)?(?:index-url|find-links)"
    r"|https?://[^/\s]*@"  # an address with a name and password
)


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    text = {".py", ".md", ".toml", ".txt", ".yaml", ".ipynb"}  # no git here, as in an unpacked source distribution
    return [path for path in ROOT.rglob("[!.]*") if path.suffix in text]


def test_no_machine_paths_or_registries():
    found, paths = [], tracked()
    assert Path(__file__).resolve() in {path.resolve() for path in paths}
    for path in paths:
        text = path.read_bytes().decode("utf-8", "ignore")
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "text", ["/ho" + "me/ann/x", "https://pyp" + "i.org/simple", "--index" + "-url x", "http" + "://a:b@c"]
)
def test_machine_paths_are_seen(text):
    assert MACHINE.search(f"see {text} here")


def test_constraints_hold_no_addresses():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert text.count("==") == len(re.findall(r"^[\w.-]+==\S+ \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))

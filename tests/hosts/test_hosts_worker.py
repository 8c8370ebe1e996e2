"""The modules of a worker process import no JAX: neither directly, nor in a function, nor through another module."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import rlkit

ROOT = Path(rlkit.__file__).parents[1]
WORKER = ROOT / "rlkit" / "hosts" / "worker"
ALLOWED = {"rlkit.names"}  # of rlkit, besides the folder itself

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import rlkit.hosts.worker as folder
names = [module.name for module in pkgutil.iter_modules(folder.__path__, "rlkit.hosts.worker.")]
for name in names:
    importlib.import_module(name)
print(json.dumps([names, sorted(sys.modules)]))
"""


def forbidden_imports(source: str) -> list[str]:
    """Return the modules that a source imports anywhere, functions included, and that a worker must not import."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "rlkit":
            names += [f"rlkit.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + str(node.module))
    own = ("rlkit.hosts.worker", *ALLOWED)
    return [
        name
        for name in names
        if name.split(".")[0] in ("jax", "jaxlib", "flax", "optax", "")
        or (name.split(".")[0] == "rlkit" and not name.startswith(own))
    ]


def test_importing_every_module_of_a_worker_imports_no_jax():
    """A new interpreter, as a worker is one."""
    command = [sys.executable, "-c", IMPORT_ALL]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    names, imported = json.loads(result.stdout)
    assert {name.rpartition(".")[2] for name in names} == {path.stem for path in WORKER.glob("[!_]*.py")}
    assert "rlkit.hosts.worker.main" in names
    assert not {"jax", "jaxlib", "flax", "optax"} & set(imported)
    ours = {name for name in imported if name.partition(".")[0] == "rlkit"}
    assert ours == {"rlkit", "rlkit.hosts", "rlkit.hosts.worker", *names} | ALLOWED


@pytest.mark.parametrize("path", sorted(WORKER.glob("*.py")), ids=lambda path: path.name)
def test_no_function_of_a_worker_imports_jax(path):
    assert forbidden_imports(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import jax",
        "def f():\n    import jax.numpy as jnp",
        "from jax import numpy",
        "from rlkit import types",
        "from rlkit.spaces import Box",
        "from rlkit.hosts.pool import Pool",
        "from ..pool import Pool",
        "if TYPE_CHECKING:\n    from rlkit.types import PyTree",
    ],
)
def test_forbidden_imports_are_detected(source):
    assert forbidden_imports(source)


def test_allowed_imports_are_not_reported():
    source = (
        "import os\nimport numpy as np\nfrom rlkit.names import ACTION_MASK\nfrom rlkit.hosts.worker import contract"
    )
    assert forbidden_imports(source) == []

"""The effects of importing rlkit: no heavy library, no output, no environment variable, no backend of JAX."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import rlkit

HEAVY = ["jax", "jaxlib", "flax", "optax", "orbax", "gymnax", "gymnasium", "pandas", "seaborn", "matplotlib"]
MODULES = [info.name for info in pkgutil.walk_packages(rlkit.__path__, "rlkit.") if not info.name.endswith("__main__")]


def run_python(code: str) -> dict:
    """Run `code`, which prints one JSON object and nothing else, in a new process; return that object."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


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
def test_no_heavy_library_is_loaded(code):
    loaded = run_python(f"{code}\nimport json, sys; print(json.dumps(dict.fromkeys(sys.modules)))")
    assert "rlkit" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_python_m_rlkit_runs_the_command_line():
    process = subprocess.run(
        [sys.executable, "-m", "rlkit", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0
    assert "train" in process.stdout


def test_nothing_happens_at_import():
    """Importing every module prints nothing, sets no environment variable and starts no backend.

    JAX is given a platform that does not exist, so that whatever starts a backend fails.
    """
    result = run_python(
        "import importlib, json, os\n"
        "os.environ['JAX_PLATFORMS'] = 'nowhere'\n"
        "import jax, optax, flax\n"  # JAX sets variables of its own
        "before = dict(os.environ)\n"
        f"for name in {['rlkit', *MODULES]!r}: importlib.import_module(name)\n"
        "after = dict(os.environ)\n"
        "changed = [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)]\n"
        "try: jax.devices()\n"
        "except RuntimeError: can_fail = True\n"
        "else: can_fail = False\n"
        "print(json.dumps(dict(changed=changed, can_fail=can_fail)))"
    )
    assert result == {"changed": [], "can_fail": True}


def test_names_that_are_imported_on_first_use_exist():
    """A module that has moved is not noticed at import."""
    modules = map(importlib.import_module, ["rlkit", *MODULES])
    packages = [module for module in modules if hasattr(module, "__getattr__")]
    assert {package.__name__ for package in packages} >= {"rlkit", "rlkit.runs", "rlkit.hosts"}
    for package in packages:
        assert [name for name in package.__all__ if not hasattr(package, name)] == []

"""Virtual environments of the libraries that rlkit is compared with."""

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

REJAX = {"rejax": "0.1.3", "gymnax": "0.0.9", "jax": version("jax")}  # the same compiler


def python(folder: Path, packages: Mapping[str, str]) -> Path:
    """Return the interpreter of a virtual environment with these versions; make the environment if it has others."""
    interpreter = folder / "bin" / "python"
    check = f"from importlib.metadata import version as v; assert {{n: v(n).split('+')[0] for n in {[*packages]}}} == "
    check += repr(dict(packages))
    if interpreter.exists() and subprocess.run([interpreter, "-c", check], stderr=subprocess.DEVNULL).returncode == 0:
        return interpreter
    pinned = [f"{name}=={number}" for name, number in packages.items()]
    print(f"making {folder} with {', '.join(pinned)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *pinned], check=True)
    return interpreter

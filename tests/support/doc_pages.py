"""The blocks of code of a page, and their execution as a reader would execute them."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import jax

ROOT = Path(__file__).parents[2]


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of one language, in order."""
    return [code for other, code in _fenced(page) if other == language]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that succeeds, with this interpreter's scripts first in the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}
    process = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False, env=os.environ | settings
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def run_here(code: str) -> str:
    """The output of a script in this process, which compiles quickly, under the settings that users have."""
    user = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with contextlib.redirect_stdout(io.StringIO()) as printed, user[0], user[1]:
        exec(compile(code, "page", "exec"), {"__name__": "page"})
    return printed.getvalue()


def execute(page: Path, cwd: Path) -> list[str]:
    """Run all bash and Python of a page in order; blocks that follow each other are one script.

    Returns:
      The output of each script.
    """
    runnable = [block for block in _fenced(page) if block[0] in ("bash", "python")]
    interpreters = {"bash": ("bash", "-ec"), "python": (sys.executable, "-c")}
    return [
        run(*interpreters[language], "\n".join(code for _, code in group), cwd=cwd)
        for language, group in groupby(runnable, itemgetter(0))
    ]


def numbers(text: str) -> list[float]:
    """All numbers in a text."""
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def unexplained(line: Iterable[str]) -> list[str]:
    """The names of a metric line that docs/metrics.md does not explain; none where there is no such page."""
    page = ROOT / "docs/metrics.md"
    if not page.exists():  # in a source distribution
        return []
    explained = re.findall(r"\*\*`(\w+)`\*\*", page.read_text())
    assert "env_restarts" in explained
    return [name for name in line if name not in explained]


def _fenced(page: Path) -> list[tuple[str, str]]:
    """The language and the code of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)

"""Worker processes that are asked one thing at a time, and the virtual environments that peers live in."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import report


class Worker:
    """A process that answers JSON, a line each, and first of all with its versions."""

    def __init__(self, name: str, command: Sequence[Any], environment: Mapping[str, str]):
        self.name = name
        self.process = subprocess.Popen(
            [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )

    def __enter__(self) -> "Worker":
        self.versions = self._answer()["versions"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def ask(self, command: str, *arguments: Any) -> Any:
        print(json.dumps({command: arguments}), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker of {self.name} ended: exit code {self.process.wait()}; see above")
        return json.loads(line)


def answer(worker: Any, packages: Sequence[str]) -> None:
    """The other end: call the method of `worker` that each line on standard input names.

    Args:
      packages: of which the installed versions are told, where there are any.
    """
    versions = {name: number for name, number in report.versions(packages).items() if number is not None}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    print(json.dumps({"versions": versions}), file=answers)
    for line in sys.stdin:
        ((command, arguments),) = json.loads(line).items()
        print(json.dumps(getattr(worker, command)(*arguments)), file=answers)


def peer_python(folder: Path, packages: Mapping[str, str]) -> Path:
    """The interpreter of a virtual environment with these versions, which is made where it is missing or unfinished."""
    python = folder / "bin" / "python"
    check = f"from importlib.metadata import version as v; assert {{n: v(n).split('+')[0] for n in {[*packages]}}} == "
    check += repr(dict(packages))
    if python.exists() and subprocess.run([python, "-c", check], stderr=subprocess.DEVNULL).returncode == 0:
        return python
    pinned = [f"{name}=={number}" for name, number in packages.items()]
    print(f"making {folder} with {', '.join(pinned)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pinned], check=True)
    return python

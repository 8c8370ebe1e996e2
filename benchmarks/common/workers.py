"""Worker processes that are asked one thing at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from common import report


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

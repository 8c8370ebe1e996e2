"""Worker processes whose methods are called one at a time, by lines of JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from common import report


class Worker:
    """A process that runs `serve`: each call writes one line of JSON and reads one. The first line has its versions."""

    def __init__(self, name: str, command: Sequence[Any], environment: Mapping[str, str]):
        self.name = name
        self.process = subprocess.Popen(
            [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
        )

    def __enter__(self) -> "Worker":
        self.versions = self._read()["versions"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker and wait for its result."""
        print(json.dumps({method: arguments}), file=self.process.stdin, flush=True)
        return self._read()

    def _read(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker of {self.name} ended: exit code {self.process.wait()}; see above")
        return json.loads(line)


def serve(worker: Any, packages: Sequence[str]) -> None:
    """Call the method of `worker` that each line on standard input names, and print its result as JSON.

    Args:
      worker: any object.
      packages: packages whose versions are printed first, those that are installed.
    """
    versions = {name: number for name, number in report.versions(packages).items() if number is not None}
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # prints of a library go to standard error, apart from the results
    print(json.dumps({"versions": versions}), file=results)
    for line in sys.stdin:
        ((method, arguments),) = json.loads(line).items()
        print(json.dumps(getattr(worker, method)(*arguments)), file=results)

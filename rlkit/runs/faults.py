"""The log of failures of environments outside of JAX: env_faults.jsonl, one JSON object a line.

A line holds `step` (environment steps at the last metric line), and the fields of `hosts.failure.Failure`. The file is
not cut where a run is resumed from an earlier step: the failures after that step have happened too.
"""

import json
from pathlib import Path

from rlkit.hosts.failure import Failure
from rlkit.runs import files

FILE = "env_faults.jsonl"
_MAX_BYTES = 1 << 30


def add(run: Path, step: int, failure: Failure) -> None:
    """Append a failure to the log of a run."""
    files.append(run / FILE, json.dumps({"step": step, **failure._asdict()}).encode() + b"\n")


def drop_unfinished_line(run: Path) -> None:
    """Cut off a last line that was not written to its end, so that the next one begins a line."""
    try:
        text = files.read(run / FILE, _MAX_BYTES)
    except FileNotFoundError:
        return
    files.cut(run / FILE, text.rfind(b"\n") + 1)

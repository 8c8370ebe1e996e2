"""Records in a sweep's folder: the base config that it began with, and JSON that may be damaged."""

from pathlib import Path
from typing import Any, TypeVar

from rlkit.runs import files, records
from rlkit.runs.config import load, strict_yaml
from rlkit.runs.config.errors import show_value
from rlkit.runs.sweeps import trials
from rlkit.runs.sweeps.config import Sweep
from rlkit.types import ConfigError

RESOLVED = "resolved.yaml"
DELETE = "delete it and go on, and it is made again"
PUT_BACK = "put it back, or start another sweep"

T = TypeVar("T")


def read_json(path: Path, kind: type[T], remedy: str) -> T:
    """Read JSON that this sweep has written, with the arguments and errors of `records.read`."""
    return records.read(path, kind, "be as the sweep wrote it", remedy)


def write_base(folder: Path, sweep: Sweep) -> None:
    """Write the base config of a sweep that begins, resolved: every key that is not swept, with its value."""
    files.replace(folder / RESOLVED, strict_yaml.dump(_resolved_base(sweep)).encode())


def check_base(folder: Path, sweep: Sweep) -> None:
    """Raise ConfigError where a sweep that goes on would train with another base config than the one it began with."""
    if not (folder / RESOLVED).is_file():  # of an earlier version
        return
    began, now = load.read(folder / RESOLVED), strict_yaml.parse(strict_yaml.dump(_resolved_base(sweep)))
    for key, value in now.items():
        if key in began and began[key] != value:
            raise ConfigError(
                f"{key}={show_value(value)} must be {show_value(began[key])}, as when the sweep in {folder} began; "
                "change it back, or start another one"
            )


def _resolved_base(sweep: Sweep) -> dict[str, Any]:
    """Keys and values of the base config with defaults; without those that are swept or may differ when going on."""
    values = sweep.trial_config(trials.ends(sweep)[0]).flat()
    for key in {*sweep.dimensions, *sweep.own_code, "num_seeds", "devices"}:
        outer, _, inner = key.partition(".")
        if inner:
            values[outer] = {name: value for name, value in values[outer].items() if name != inner}
        else:
            del values[key]
    return values

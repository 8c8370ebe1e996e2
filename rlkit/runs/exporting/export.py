"""Export of a run's greedy policy to a file that programs without rlkit can act with."""

from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Unpack

import jax

from rlkit.names import did_you_mean
from rlkit.runs import files
from rlkit.runs.config.own_code import OwnCode
from rlkit.runs.exporting import onnx_graph, stablehlo
from rlkit.runs.exporting.comparison import compare
from rlkit.runs.exporting.policy_function import Value, policy_function
from rlkit.runs.policy import load
from rlkit.types import ConfigError

# Modules with the functions to_bytes(function) -> bytes and reader(bytes) -> (inputs -> outputs).
FORMATS: dict[str, ModuleType] = {"onnx": onnx_graph, "stablehlo": stablehlo}


class Exported(NamedTuple):
    """A file with a policy, and the inputs and outputs of the policy."""

    path: Path
    format: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    num_bytes: int

    def __str__(self) -> str:
        """Return the fields in a line."""
        values = (", ".join(map(str, values)) for values in (self.inputs, self.outputs))
        return f"{self.path} ({self.format}): {' -> '.join(values)}; {self.num_bytes} bytes"


def export(
    run: str | Path,
    format: str | None,
    out: str | Path,
    *,
    seed: int | None = None,
    step: int | None = None,
    best: bool = False,
    **own_code: Unpack[OwnCode],
) -> Exported:
    """Write the greedy policy of a run to a file, after a comparison of 1,000 actions with the policy's own.

    Args:
      run: a run directory.
      format: "stablehlo" (for `jax.export.deserialize`) or "onnx"; None for the ending of `out`.
      out: the file; it replaces an older one.
      seed, step, best, own_code: as for `rlkit.load`.

    Raises:
      ConfigError: there is no such run, checkpoint, seed or format, the format does not fit the policy, a library of
        the extra `onnx` is missing, or the file cannot be written.
    """
    format = Path(out).suffix.removeprefix(".") if format is None else format
    if format not in FORMATS:
        known = sorted(FORMATS)
        raise ConfigError(f"format={format!r} must be one of {', '.join(known)}{did_you_mean(format, known)}")
    path = Path(out)
    if path.is_dir():
        raise ConfigError(f"out={str(out)!r} must be a file, and it is a directory; try {path / f'policy.{format}'}")
    files.require_writable(path.parent, f"out={str(out)!r}")
    function = policy_function(load(run, seed=seed, step=step, best=best, **own_code))
    with jax.default_matmul_precision("highest"):  # else products on a GPU, of the file too, are right to 1e-3 alone
        data = FORMATS[format].to_bytes(function)
        compare(format, function, FORMATS[format].reader(data))
    files.replace(path, data)
    return Exported(path, format, function.inputs, function.outputs, len(data))

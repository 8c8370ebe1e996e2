"""Records of runs and sweeps: a JSON file, whole or absent, and JSON lines, which grow and may be read meanwhile.

A type, which pydantic validates strictly, describes what is read. A last line that was not written to its end, as a
kill or a full disk leaves it, is left out.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Interval
from pydantic import BaseModel, TypeAdapter, ValidationError

from rlkit.runs import files
from rlkit.runs.config.errors import show_key, show_value
from rlkit.types import ConfigError

Count = Annotated[int, Interval(ge=0, lt=2**63)]  # of steps or of something else
Number = Annotated[int, Interval(ge=-(10**308), le=10**308)] | Annotated[float, Interval(ge=-1e308, le=1e308)]  # finite
Numbers = list[Number | None]
_MAX_BYTES, _MAX_BYTES_OF_LINES = 1 << 26, 1 << 30

T = TypeVar("T")
_adapter = cache(TypeAdapter)


def write(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    files.replace(path, files.to_json(value) + b"\n")


def read(path: Path, kind: type[T], rule: str, remedy: str) -> T:
    """Read a JSON file.

    Args:
      path: of the file.
      kind: the type of its content.
      rule: the words of the error after "must".
      remedy: the end of the error.

    Raises:
      ConfigError: it cannot be read, or holds something else; the error names the first field that does.
    """
    return _parse(_read(path, _MAX_BYTES, rule, remedy), kind, path, "", rule, remedy)


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line to JSON lines, whole or not at all. Raises ValueError for a number that is not finite."""
    files.append(path, json.dumps(line, allow_nan=False).encode() + b"\n")


def read_lines(path: Path, kind: type[BaseModel], rule: str, remedy: str) -> list[dict[str, Any]]:
    """Read JSON lines, with the arguments and errors of `read`."""
    text = _read(path, _MAX_BYTES_OF_LINES, rule, remedy)
    lines = enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1)  # those that were written to their end
    parsed = (_parse(line, kind, path, f"line {number}", rule, remedy) for number, line in lines)
    return [line.model_dump(exclude_unset=True) for line in parsed]


def cut(path: Path) -> None:
    """Cut JSON lines to those that were written to their end."""
    files.cut(path, files.read(path, _MAX_BYTES_OF_LINES).rfind(b"\n") + 1)


def _read(path: Path, max_bytes: int, rule: str, remedy: str) -> bytes:
    """The bytes of a file. Raises ConfigError where it cannot be read."""
    try:
        return files.read(path, max_bytes)
    except OSError as error:
        raise ConfigError(f"{path} must {rule}: {error.strerror}; {remedy}") from None


def _parse(text: bytes, kind: type[T], path: Path, place: str, rule: str, remedy: str) -> T:
    """The value of JSON text. Raises ConfigError, with the place in the file, where it is not of this kind."""
    try:
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, *inner = first["loc"] or ("",)
        verb = "has" if any(isinstance(part, int) for part in inner) else "is"
        value = "missing" if first["type"] == "missing" else show_value(first["input"])
        field = f"{show_key(name)} in {place}" if place else show_key(name)
        found = f"{field} {verb} {value}" if first["loc"] else f"{place or 'it'} is damaged"
        raise ConfigError(f"{path} must {rule}: {found}; {remedy}") from None

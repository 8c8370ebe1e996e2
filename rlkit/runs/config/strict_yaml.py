"""A strict subset of YAML: the values of YAML 1.2's core schema.

PyYAML's parser is used, but not its constructors: `1e-3` is a number and `no` is a string here, a key may occur only
once, and there are no tags, no aliases (which can grow without bound), and no deep nesting.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

MAX_BYTES, MAX_DEPTH = 1 << 18, 8
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is installed

_DIGITS = "[0-9](_?[0-9]){0,40}"  # an underscore between two digits, as in Python
_INT = re.compile(f"[-+]?{_DIGITS}")
_FLOAT = re.compile(rf"[-+]?(\.{_DIGITS}|{_DIGITS}(\.({_DIGITS})?)?)([eE][-+]?[0-9]{{1,5}})?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF", "inf")},
}


def parse(text: str) -> Any:
    """Parse one YAML document of mappings, lists, strings, numbers, booleans and null.

    Raises:
      ValueError: the text is not YAML, or not within the subset; one line.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"it must not be longer than {MAX_BYTES} characters")
    try:
        events = yaml.parse(text, Loader=_Loader)  # lazily: libyaml takes quadratic time for deep nesting
        kinds = (type(next(events)) for _ in range(2))  # StreamStart, then DocumentStart unless the text is empty
        value = _value(events) if yaml.DocumentStartEvent in kinds else None
        if sum(1 for _ in zip(events, range(3), strict=False)) > 2:  # more than DocumentEnd and StreamEnd
            raise ValueError("it holds more than one document")
        return value
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}{getattr(error, 'problem', None) or 'it is not YAML'}") from None
    except UnicodeError:
        raise ValueError("it is not Unicode text") from None


def scalar(text: str) -> Any:
    """Return the value of an unquoted word."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Writes strings that `scalar` would read as another type, such as `1e5`, in quotes."""

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> yaml.ScalarNode:
        quoted = tag.endswith(":str") and not isinstance(scalar(value), str)
        return super().represent_scalar(tag, value, "'" if quoted else style)


def dump(mapping: dict[str, Any]) -> str:
    """Return YAML text that `parse` reads back as the same mapping of plain values."""
    return yaml.dump(mapping, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)


_END = object()


def _value(events: Iterator[Any], depth: int = 0) -> Any:
    """Build the value of the next events, or return _END where a list or mapping ends."""
    event = next(events)
    line = f"line {event.start_mark.line + 1}"
    if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
        return _END
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise ValueError(f"{line}: anchors and aliases are not allowed; write the value out")
    if event.tag not in (None, "!"):
        raise ValueError(f"{line}: tags are not allowed; write the plain value instead of {event.tag!r}")
    if isinstance(event, yaml.ScalarEvent):
        return scalar(event.value) if event.implicit[0] else event.value
    if depth == MAX_DEPTH:
        raise ValueError(f"{line}: it is nested more than {MAX_DEPTH} deep")
    values = list(iter(lambda: _value(events, depth + 1), _END))
    if isinstance(event, yaml.SequenceStartEvent):
        return values
    mapping: dict[Any, Any] = {}
    for key, value in zip(values[::2], values[1::2], strict=True):
        if isinstance(key, list | dict):
            raise ValueError(f"{line}: a key must be a word, not a list or a mapping")
        if key in mapping:
            raise ValueError(f"{key!r} is given twice; keep one")
        mapping[key] = value
    return mapping

"""Sphinx extension: docstrings of rlkit, which are plain text in Google's style, become reStructuredText."""

import dataclasses
import re
from typing import Any

from flax import linen as nn
from pydantic import BaseModel
from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Fields|Raises|Returns|Yields):$")
_FIELD = re.compile(r" *[\w., *]+: ")
_ARRAY_LIKE = re.compile(r"[~\w.]*Array \| [~\w.]*ndarray \|.*?\| complex")  # jax.typing.ArrayLike, as it is expanded
_NAME = re.compile(r"[A-Za-z_][\w.]*")


def to_rst(lines: list[str]) -> list[str]:
    """Return a docstring's lines as reStructuredText.

    Stretches that are indented by four spaces are equations and code; `name` is a reference where it has a target, and
    code elsewhere. Sections such as `Args:` are left to napoleon.
    """
    result, text, block, in_section = [], [], [], False
    for previous, line in zip(["", *lines], [*lines, "end"], strict=False):
        if line and not line.startswith(" "):
            in_section = bool(_SECTION.match(line))
        starts = not previous.strip() and line.startswith("    ") and not in_section
        if starts or (block and (line.startswith("    ") or not line.strip())):
            result += _escape(text)
            text = []
            block += [line] if block else [".. code-block:: text", "", line]
            continue
        result += [*block, ""] if block else []
        block = []
        dedents = bool(previous.strip()) and _indent(line) < _indent(previous)
        text += [""] if dedents and not (in_section and _FIELD.match(line)) else []
        text.append(re.sub(r"^( +)ConfigError:", r"\1~rlkit.types.ConfigError:", line))
    return result + _escape(text[:-1])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _escape(lines: list[str]) -> list[str]:
    """Return lines of text with code marked as such, and the other characters that have a meaning escaped."""
    parts = re.split(r"`([^`]+)`", "\n".join(lines))
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"(?<=\w)_(?!\w)|[*|\\]", lambda match: "\\" + match[0], part)
        elif _NAME.fullmatch(part):
            parts[i] = f":py:obj:`{part}`"
        else:
            parts[i] = f"``{part}``"
        if i % 2 and parts[i + 1][:1].isalnum():
            parts[i] += "\\ "
    return "".join(parts).split("\n") if lines else []


def _process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring. Napoleon would read a property's "Updates in all: of a run" as a type and its meaning."""
    lines[:] = to_rst(lines)
    if what == "property":
        lines[0] = lines[0].replace(": ", " -- ")


def _process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Shorten a signature. Leave it out where it repeats what is described elsewhere.

    The fields of Config and Hyper are in the tables of the algorithms' pages; a protocol has no arguments.
    """
    if not isinstance(obj, type):
        return signature and _ARRAY_LIKE.sub("ArrayLike", signature), returned
    if issubclass(obj, BaseModel) or name.endswith(".Hyper") or getattr(obj, "_is_protocol", False):
        return "", None
    if issubclass(obj, nn.Module):
        own = [field for field in dataclasses.fields(obj) if field.name not in ("parent", "name")]
        return f"({', '.join(map(_field_text, own))})", None
    if hasattr(obj, "_fields") and "Fields:" in (obj.__doc__ or ""):
        return f"({', '.join(obj._fields)})", None
    return signature, returned


def _field_text(field: dataclasses.Field) -> str:
    """A field of a dataclass with its default, as in a signature."""
    if field.default is dataclasses.MISSING:
        return field.name
    return f"{field.name}={getattr(field.default, '__name__', repr(field.default))}"


def _skip_member(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of records, which a section or the signature has, and flax's `replace`."""
    is_field = type(obj).__name__ == "_tuplegetter" or (what == "class" and isinstance(obj, type))
    return True if is_field or name == "replace" else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above; docstrings are converted before napoleon reads them."""
    app.connect("autodoc-process-docstring", _process_docstring, priority=100)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-skip-member", _skip_member)
    return {"parallel_read_safe": True}

"""Short text for states: dtypes and shapes of arrays instead of their numbers."""

from dataclasses import fields, is_dataclass
from typing import Any


def short_repr(self: Any) -> str:
    """Describe a state in one line: `Cursor(counts=uint32[3], num_rows=8)`. A class takes it as its `__repr__`."""
    if isinstance(self, dict):
        return "{" + ", ".join(f"{key!r}: {short_repr(value)}" for key, value in self.items()) + "}"
    if isinstance(self, tuple) and hasattr(self, "_fields"):
        return _call(type(self).__name__, dict(zip(self._fields, self, strict=True)))  # type: ignore[attr-defined]
    if isinstance(self, tuple | list):
        inner = ", ".join(map(short_repr, self))
        return f"[{inner}]" if isinstance(self, list) else f"({inner}{',' if len(self) == 1 else ''})"
    if hasattr(self, "dtype") and hasattr(self, "shape"):
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"
    if is_dataclass(self) and not isinstance(self, type):
        return _call(type(self).__name__, {field.name: getattr(self, field.name) for field in fields(self)})
    return repr(self)


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={short_repr(value)}' for key, value in arguments.items())})"

"""Text of a config's errors: one line with the key, the value, the rule and a remedy."""

import math
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from rlkit.names import shorten


def show_value(value: Any) -> str:
    """A value as it is written in YAML, as ASCII text of at most 60 characters; text stands in quotes."""
    return shorten(_yaml(value))


def _yaml(value: Any) -> str:
    """A value in YAML's words: null and true for None and True, brackets for lists."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value[:60]))}]"
    return ascii(value)


def show_key(key: Any) -> str:
    """A key as it stands where it is a plain word, otherwise quoted and shortened."""
    return key if isinstance(key, str) and re.fullmatch(r"[\w.-]{1,60}", key) else show_value(key)


def plain_value(value: Any) -> Any:
    """A value with lists instead of tuples, as YAML has them."""
    if isinstance(value, tuple | list):
        return [plain_value(item) for item in value]
    return {key: plain_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def by_value(value: Any) -> Any:
    """A value of Python's own types: numbers and lists for NumPy's and JAX's, values of enums, text of paths."""
    if isinstance(value, Enum):
        return by_value(value.value)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {by_value(key): by_value(item) for key, item in value.items()}
    return [by_value(item) for item in value] if isinstance(value, tuple | list) else value

"""Text of a config's errors: one line with the key, the value, the rule and a remedy."""

import math
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel, ValidationError

from rlkit.names import shorten

_RULES = {  # by pydantic's type of the error, in YAML's words
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a word",
    "dict_type": "must be a mapping, such as {name: value}",
    "none_required": "must be null",
}


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


def is_missing(key: str, field: Any) -> str:
    """Return the text on a key that a config must have and has not; `field` is pydantic's, or None."""
    return f"{key} is missing; add it: {field.description if field else ''}"


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """One line on the first problem of a validation, and the number of the others."""
    problems = error.errors(include_url=False)
    first, more = problems[0], len(problems) - 1
    rule = re.sub(r"^(Input|Value|Value error,|[A-Z][a-z]+) should |^Value error, ", "must ", first["msg"])
    key = ".".join(show_key(part) for part in first["loc"])
    field = model.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    if first["type"] == "missing":
        line = is_missing(key, field)
    elif first["loc"][-1:] == ("[key]",):  # pydantic's sign for a mistake in the key of a mapping
        line = f"{'.'.join(map(show_key, first['loc'][:-1]))}: a key must be a word; put it in quotes"
    elif field is None:  # a rule between fields, in the model's own words
        line = re.sub(r"^Value error, ", "", first["msg"])
    else:
        if first["type"] in ("tuple_type", "list_type"):
            rule = f"must be a list, such as {show_value(plain_value(field.get_default()) or ['a', 'b'])}"
        elif first["type"] in _RULES:
            rule = _RULES[first["type"]]
        if first["type"] == "value_error":
            rule = str(first.get("ctx", {}).get("error", rule))
        rule = re.sub(r"^must be (less|greater) than -?inf$", "must be finite", rule)
        line = f"{key}={show_value(first['input'])} {rule}"
        if not field.is_required():
            line += f"; the default is {show_value(plain_value(field.default))}"
    return " ".join(line.split()) + (f" (and {more} more)" if more else "")

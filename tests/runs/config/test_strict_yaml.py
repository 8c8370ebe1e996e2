"""YAML without surprises: no tags, no aliases, no repeated keys, and numbers are numbers."""

import math

import pytest
from mistakes import mistake

from rlkit.runs.config import strict_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E6", 1e6),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("1_0.0_5", 10.05),
        ("2024_", "2024_"),
        ("1__0", "1__0"),
        ("1._5", "1._5"),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("'3'", "3"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("0x10", "0x10"),
        ("[1, [a, 2.5]]", [1, ["a", 2.5]]),
        ("{a: 1, b: {c: ~}}", {"a": 1, "b": {"c": None}}),
        ("", None),
        ("# nothing", None),
    ],
)
def test_yaml_values(text, value):
    found = strict_yaml.parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\na: 2", "twice"),
        ("a: &x [1]\nb: *x", "aliases"),
        ("a: *x", "alias"),
        ("a: !!python/object/apply:os.system [true]", "tags"),
        ("[" * 100_000, None),
        ("[" * 20 + "]" * 20, "nested"),
        ("{a: 1}: 2", "key"),
        ("a: [1", None),
        ("a: 1\n---\nb: 2", "document"),
        ("a: \x00", None),
        ("\ta: 1", None),
        ("x" * (strict_yaml.MAX_BYTES + 1), "longer"),
    ],
)
def test_what_is_not_plain_yaml_is_refused(text, said):
    with mistake(said or "", kind=ValueError):
        strict_yaml.parse(text)


@pytest.mark.parametrize(
    "text", ["1e5", "7E3", "inf", "-inf", ".nan", "1_000", "1.5", "0x10", "no", "null", "~", "", "a: b", "é"]
)
def test_text_that_looks_like_something_else_is_read_back_as_text(text):
    mapping = {"key": text, "list": [text, 1], "inner": {"key": text}}
    assert strict_yaml.parse(strict_yaml.dump(mapping)) == mapping


@pytest.mark.parametrize("value", [1e5, 1e-7, math.inf, -3, True, None, [0.1, [2]], {"a": 1e300}])
def test_values_are_read_back_as_they_were(value):
    assert strict_yaml.parse(strict_yaml.dump({"key": value})) == {"key": value}

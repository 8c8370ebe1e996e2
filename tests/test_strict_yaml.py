"""YAML without surprises: no tags, no aliases, no repeated keys, and numbers are numbers."""

import math

import pytest

from rlkit.runs import strict_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E6", 1e6),
        ("-.5", -0.5),
        ("1_000", 1000),
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
        ("a: !!str 3", "tags"),
        ("[" * 100_000, "nested"),
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
    with pytest.raises(ValueError, match=said) as caught:
        strict_yaml.parse(text)
    assert "\n" not in str(caught.value)


def test_an_alias_bomb_is_refused():
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    with pytest.raises(ValueError, match="aliases"):
        strict_yaml.parse("\n".join(lines))

"""Suggestions for misspelled names."""

import pytest

from rlkit.names import did_you_mean

KNOWN = ("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Cartpole-v1", "; did you mean 'CartPole-v1'?"),
        ("PENDULUM", "; did you mean 'Pendulum-v1'?"),
        ("breakout", "; did you mean 'Breakout-MinAtar'?"),  # 0.58 if case mattered
        ("Hopper", ""),
        (3, ""),
        ("x" * 10**6, ""),
    ],
)
def test_did_you_mean(word, expected):
    assert did_you_mean(word, KNOWN) == expected
    assert did_you_mean(word, iter(KNOWN)) == expected


def test_two_suggestions_and_the_cutoff():
    assert did_you_mean("Pole-v1", ("CartPole-v1", "Poles-v1", "Ant")) == "; did you mean 'Poles-v1' or 'CartPole-v1'?"
    assert did_you_mean("Pole-v1", ("CartPole-v1", "Poles-v1"), cutoff=0.9) == "; did you mean 'Poles-v1'?"
    assert did_you_mean("Pole-v1", ()) == ""


def test_the_rest_of_the_name_is_added_to_suggestions_and_not_compared():
    text = did_you_mean("brxa", ("brax", "pgx"), prefix="suite ", suffix=":ant")
    assert text == "; did you mean 'suite brax:ant'?"
    assert did_you_mean("xyz", ("brax", "pgx"), prefix="suite ", suffix=":ant") == ""

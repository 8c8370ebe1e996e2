"""The code of the page of first steps, and of the README, runs as a reader would run it."""

import sys

import pytest
from doc_pages import ROOT, blocks, numbers, run, run_here

PAGE = ROOT / "docs/first-steps.md"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs/"),
]


@pytest.mark.slow
def test_the_commands_train_and_the_policy_acts(tmp_path):
    commands, python = blocks(PAGE, "bash"), blocks(PAGE, "python")
    assert len(commands) == 2
    assert "rlkit train" in commands[0]
    for block in commands:
        run("bash", "-ec", block, cwd=tmp_path)
    folder = tmp_path / "runs/three"
    assert {"config.yaml", "metrics.jsonl", "eval.json", "policy.gif"} <= {path.name for path in folder.iterdir()}
    assert run(sys.executable, "-c", python[0], cwd=tmp_path).split()[-1] in ("0", "1")


@pytest.mark.slow
def test_a_loop_of_ones_own_learns(tmp_path):
    slow, fast = numbers(run(sys.executable, "-c", blocks(PAGE, "python")[1], cwd=tmp_path))
    assert 100 < slow < fast <= 500


def test_the_pieces_print_what_they_compute():
    pieces = blocks(PAGE, "python")[2:]
    assert len(pieces) == 2
    printed = numbers(run_here("\n".join(pieces)))
    last, delta = 1 + 0.9 * 2.0, 0.9 * 0.95  # of the last step, bootstrapped; gamma times lambda
    assert printed[:5] == pytest.approx([last + delta, 1.0, last + delta * last, last, last], abs=1e-3)
    assert printed[-6:] == [7.0, 1.0, 4.0, 0, 3, 5]


def test_a_short_training_of_the_readme_prints_ten_returns():
    (python,) = blocks(ROOT / "README.md", "python")
    assert python.count(" 200)") == 1
    returns = numbers(run_here(python.replace(" 200)", " 3)")))
    assert len(returns) == 10
    assert min(returns) > 8  # the fewest steps in which the pole falls


@pytest.mark.slow
def test_the_training_of_the_readme_learns(tmp_path):
    (python,) = blocks(ROOT / "README.md", "python")
    returns = numbers(run(sys.executable, "-c", python, cwd=tmp_path))
    assert len(returns) == 10
    assert min(returns) > 100

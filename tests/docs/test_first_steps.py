"""The code of the page of first steps, and of the README, runs as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/first-steps.md"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PAGE.exists(), reason="a source distribution has no docs/"),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def run(*command, cwd) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": ""}
    process = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=280, check=False, env=os.environ | settings
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", text)]


def test_the_commands_train_and_the_policy_acts(tmp_path):
    commands, python = blocks(PAGE, "bash"), blocks(PAGE, "python")
    assert len(commands) == 2
    assert "rlkit train" in commands[0]
    for block in commands:
        run("bash", "-ec", block, cwd=tmp_path)
    folder = tmp_path / "runs/ppo-cartpole"
    assert {"config.yaml", "metrics.jsonl", "eval.json", "policy.gif"} <= {path.name for path in folder.iterdir()}
    assert run(sys.executable, "-c", python[0], cwd=tmp_path).split()[-1] in ("0", "1")


def test_a_loop_of_ones_own_learns(tmp_path):
    slow, fast = numbers(run(sys.executable, "-c", blocks(PAGE, "python")[1], cwd=tmp_path))
    assert 100 < slow < fast <= 500


def test_the_pieces_print_what_they_compute(tmp_path):
    pieces = blocks(PAGE, "python")[2:]
    assert len(pieces) == 2
    printed = numbers(run(sys.executable, "-c", "\n".join(pieces), cwd=tmp_path))
    last, delta = 1 + 0.9 * 2.0, 0.9 * 0.95  # of the last step, bootstrapped; gamma times lambda
    assert printed[:5] == pytest.approx([last + delta, 1.0, last + delta * last, last, last], abs=1e-3)
    assert printed[-6:] == [7.0, 1.0, 4.0, 0, 3, 5]


def test_the_readme_prints_ten_returns(tmp_path):
    (python,) = blocks(ROOT / "README.md", "python")
    returns = numbers(run(sys.executable, "-c", python, cwd=tmp_path))
    assert len(returns) == 10
    assert min(returns) > 100

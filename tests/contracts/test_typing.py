"""Types as users of the package see them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "support/typed_example.py"


@pytest.mark.thorough
def test_a_strict_type_checker_accepts_code_that_uses_the_package(tmp_path):
    """Every setting of a Config is optional to it, and no public name has an unknown type."""
    settings = {"typeCheckingMode": "strict", "include": [str(EXAMPLE)], "exclude": []}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", tmp_path, "--pythonpath", sys.executable]
    process = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert process.returncode == 0, process.stdout
    assert "0 errors, 0 warnings" in process.stdout


@pytest.mark.slow
def test_the_example_runs():
    process = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=280)
    assert process.returncode == 0, process.stderr
    assert -1 <= float(process.stdout) <= 1

"""The benchmark for a GPU, with a CPU in its place: every part runs, and what it reports can fail."""

import json
import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from benchmark_scripts import BENCHMARKS, PROGRAMS

FOLDER = BENCHMARKS / "gpu"
MODULES = ("measuring", "correctness", "rendering", "packing", "sizes")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PROGRAMS, reason="a source distribution has no benchmarks"),
]


@pytest.fixture(scope="module")
def gpu():
    """The modules of the benchmark, which import each other as those of a script."""
    before, names = [*sys.path], {*sys.modules}
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
    yield SimpleNamespace(**{name: import_module(name) for name in MODULES})
    sys.path[:] = before
    for name in {*sys.modules} - names:
        if str(FOLDER.parent) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_parts_run_and_agree(tmp_path):
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, FOLDER / "run.py", "--quick", "--minutes", "9", "--results", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    for part, result in results.items():
        assert "ended" not in result, done.stderr
        assert result["made"]["device"].startswith(str(jax.device_count()))
        for name, case in result["cases"].items():
            assert "left out" not in case, (part, name, case)
            assert case.get("met", True), (part, name, case)
            assert part == "correctness" or all(len(seconds) == 2 for seconds in case["seconds"].values())
    assert len(results) == 9
    assert (tmp_path / "gpu.md").read_text().count("\n## ") == 9


def test_a_difference_from_the_cpu_is_reported(gpu):
    expected = {"x": np.array([3.0, 4.0, np.inf], np.float32), "n": np.array([1, 2])}
    assert gpu.correctness.compare(expected, expected, 0.0)["met"]
    near = gpu.correctness.compare(expected | {"x": np.array([3.0, 4.005, np.inf], np.float32)}, expected, 2e-3)
    assert near["met"]
    assert near["error"] == pytest.approx(1e-3, rel=1e-3)
    assert not gpu.correctness.compare(expected | {"x": expected["x"] + np.float32(1)}, expected, 1e-3)["met"]
    assert gpu.correctness.compare(expected | {"n": np.array([1, 3])}, expected, 1.0)["unequal"] == ["n"]
    for wrong in (np.nan, -np.inf):
        x = expected["x"].copy()
        x[0] = wrong
        assert not gpu.correctness.compare(expected | {"x": x}, expected, 1e-3)["met"]


class Case:
    """A case that fails in some runs."""

    def __init__(self, failing=()):
        self.about, self.failing = {"compile": 1.0}, failing

    def run(self, seed):
        if seed in self.failing:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")
        return {"call": float(seed)}


def collected(updates):
    found: dict[str, dict] = {}
    for name, fields in updates:
        found.setdefault(name, {}).update(fields)
    return found


def test_rounds_leave_out_what_fails(gpu):
    def too_large():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")

    cases = {"good": Case, "failing": lambda: Case(failing=(2,)), "too large": too_large}
    found = collected(gpu.measuring.measure(cases, 3, gpu.measuring.Budget(60)))
    assert found["good"]["seconds"] == {"call": [1.0, 2.0, 3.0]}
    assert found["failing"]["seconds"] == {"call": [1.0]}
    assert found["failing"]["left out"] == "RESOURCE_EXHAUSTED: out of memory"
    assert found["too large"] == {"left out": "RESOURCE_EXHAUSTED"}


def test_a_budget_that_is_used_up(gpu):
    assert (
        "no time left"
        in collected(gpu.measuring.measure({"late": Case}, 3, gpu.measuring.Budget(0)))["late"]["left out"]
    )
    budget = gpu.measuring.Budget(60)
    budget.over = lambda share=1.0: share == 1.0  # after compilation
    found = collected(gpu.measuring.measure({"a": Case, "b": Case}, 5, budget))
    assert all(case["seconds"] == {"call": [1.0]} for case in found.values()), "one round is always timed"


def test_results_of_an_interrupted_run_are_rendered(gpu):
    results = {
        "correctness": {"cases": {"PPO": {"left out": "no time left"}}},
        "environments": {"cases": {"64": {"compile": 1.0, "amount": 10, "unit": "steps"}, "256": {"left out": "why"}}},
        "trees": {"cases": {"small": {"first run": 2.0, "seconds": {"jit total": [1e-6, 2e-6]}}}, "ended": "Ended."},
        "slices": {"cases": {"big": {"scaled": 2, "wanted": "4 of 8"}}},
        "seeds": {"cases": {}},
    }
    text = gpu.rendering.render(results)
    assert "1.5 (1 to 2)" in text
    assert "scaled down from 4 of 8" in text
    assert "Ended." in text


def test_what_is_carried_along_is_without_jax(gpu):
    names = {pin.partition("==")[0] for pin in gpu.packing.pins()}
    assert {"flax", "optax", "chex", "gymnax", "pydantic", "pydantic-core", "six"} <= names
    assert not {"jax", "jaxlib", "numpy", "scipy", "tensorstore", "rlkit-jax"} & names

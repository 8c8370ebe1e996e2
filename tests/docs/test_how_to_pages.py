"""The code of the how-to pages runs as a reader would run it, and comes to the results that they state."""

import json
import re

import jax
import numpy as np
import pytest
from doc_pages import ROOT, blocks, execute, numbers, run_here

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not (ROOT / "docs").exists(), reason="a source distribution has no docs/"),
]


@pytest.mark.slow
def test_a_run_is_extended_and_resumed_bit_for_bit(tmp_path):
    *_, python = execute(ROOT / "docs/resume.md", tmp_path)
    assert python.split() == ["20", "40", "True"]
    (change,) = json.loads((tmp_path / "runs/first/changes.json").read_text())
    assert change == {
        "step": 100352,
        "changed": {"total_steps": ["100000", "150000"], "learning_rate": ["0.002", "0.001"]},
    }
    assert (tmp_path / "runs/second/init_from").read_text() == str(tmp_path / "runs/first")


@pytest.mark.slow
def test_agents_learn_from_a_dataset_and_from_an_archive(tmp_path):
    _, written, _, offline = execute(ROOT / "docs/offline-data.md", tmp_path)
    assert written.strip() == "Dataset(1250 steps of each of 1 environments)"
    assert numbers(offline)[0] == 20_000
    for run in ("td3_bc", "iql"):
        assert numbers((tmp_path / f"runs/{run}/eval.json").read_text())


@pytest.mark.slow
def test_the_environment_is_examined_and_a_probe_learned(tmp_path):
    examined, _ = execute(ROOT / "docs/debugging-learning.md", tmp_path)
    *least_and_greatest, low, high, terminal, limits = numbers(examined)
    assert np.abs(least_and_greatest).max() <= 8.001  # cosine, sine, and the speed of the pendulum
    assert -16.3 < low < high <= 0
    assert (terminal, limits) == (0, 5)
    assert json.loads((tmp_path / "runs/probe/eval.json").read_text())["mean"] == 1


@pytest.mark.slow
def test_seeds_are_scanned_with_donated_buffers(tmp_path):
    (printed,) = execute(ROOT / "docs/speed.md", tmp_path)
    assert printed.split("\n")[0] == "(4, 50) 9600"


@pytest.mark.slow
def test_keys_are_mapped_over_the_cores(tmp_path):
    (printed,) = execute(ROOT / "docs/many-runs.md", tmp_path)
    alone = [float(jax.random.normal(key)) for key in jax.random.split(jax.random.key(0), 10)]
    assert numbers(printed) == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
def test_one_update_is_divided_over_two_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    (printed,) = execute(ROOT / "docs/many-devices.md", tmp_path)
    devices, num_steps, loss = numbers(printed)
    assert (devices, num_steps) == (2, 2048 * 32)
    assert np.isfinite(loss)


@pytest.mark.slow
def test_an_environment_of_ones_own_is_learned_as_an_object(tmp_path):
    (printed,) = execute(ROOT / "docs/your-own-environment.md", tmp_path)
    assert "runs/reach" in printed
    assert json.loads((tmp_path / "runs/reach/eval.json").read_text())["mean"] > -3  # random actions reach about -16


@pytest.mark.slow
def test_a_config_is_reproduced_to_the_bit(tmp_path):
    (printed,) = execute(ROOT / "docs/reproducibility.md", tmp_path)
    assert printed.split() == ["True"]


@pytest.mark.slow
def test_an_algorithm_of_ones_own_learns(tmp_path):
    (printed,) = execute(ROOT / "docs/your-own-algorithm.md", tmp_path)
    loaded, *scores = printed.splitlines()
    assert "__main__:make on CartPole-v1, step 100352" in loaded
    scores = numbers(" ".join(scores))
    assert len(scores) == 5
    assert min(scores) > 100  # random actions reach about 20


@pytest.mark.slow
def test_a_buffer_of_ones_own_draws_the_newest_steps_and_is_used_by_an_agent():
    first, second = run_here("".join(blocks(ROOT / "docs/your-own-buffer.md", "python"))).splitlines()
    assert first == "[4 4] True 10"
    assert numbers(second)[1] == 10_000


def test_every_page_with_code_is_in_a_test():
    with_code = {page.name for page in (ROOT / "docs").glob("*.md") if blocks(page, "python") + blocks(page, "bash")}
    named = {
        name for test in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"[\w-]+\.md", test.read_text())
    }
    assert len(with_code) > 10
    assert with_code - named == set()

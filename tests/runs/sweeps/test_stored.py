"""Folders of sweeps that were edited, damaged, or moved to a machine with other memory."""

import json
import shutil

import pytest
from mistakes import mistake
from small_sweeps import a_sweep, compiled_once, rows

from rlkit.runs.config import strict_yaml
from rlkit.runs.sweeps import stages
from rlkit.runs.sweeps import sweep as sweeps
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.sweep import sweep

pytestmark = pytest.mark.thorough

KEYS = {"trials": 3, "total_steps": 64, "log_every": None, "eval_episodes": 2, "env_kwargs.max_steps_in_episode": 50}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    with compiled_once():
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a sweep that has ended: six runs in three blocks."""
    folder = tmp_path_factory.mktemp("finished")
    return sweep(a_sweep(folder, **KEYS, runs_at_once=2), out=folder / "sweep", show=False).folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "sweep")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("base.yaml", "num_epochs: 1", "num_epochs: 4", "num_epochs=4 must be 1, as when the sweep in "),
        ("base.yaml", "max_steps_in_episode: 50", "max_steps_in_episode: 60", "env_kwargs="),
        ("base.yaml", "hidden_sizes: [8]", "hidden_sizes: [16]", "hidden_sizes=[16] must be [8]"),
        ("sweep.yaml", "trials: 3", "trials: 3\ngamma: 0.5", "gamma=0.5 must be 0.98"),
    ],
)
def test_an_edited_base_config_is_refused(folder, file, old, new, message):
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    table = (folder / "trials.csv").read_bytes()
    with mistake(message):
        sweep(folder, show=False)
    assert (folder / "trials.csv").read_bytes() == table


@pytest.mark.parametrize("value", ["data", {"values": ["data", "minari:D4RL/door/human-v2"]}])
def test_a_dataset_is_found_from_any_folder(tmp_path, monkeypatch, value):
    monkeypatch.setattr(sweeps, "check", lambda trials: None)
    monkeypatch.setattr(sweeps._Run, "run", lambda self: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(
        "agent: iql\nenv: Pendulum-v1\nnum_envs: 2\nnum_steps: 4\ntotal_steps: 64\ndataset: data\n"
    )
    file = {"config": "base.yaml", "learning_rate": {"values": [1e-3, 1e-4]}, "dataset": value}
    (tmp_path / "mine.yaml").write_text(strict_yaml.dump(file))
    sweep("mine.yaml", out="sweep", show=False)
    monkeypatch.chdir("/")
    again = load_sweep(tmp_path / "sweep")
    found = again.dimensions["dataset"].values if "dataset" in again.dimensions else [again.base["dataset"]]
    assert found[0] == str(tmp_path / "data")
    assert all(name == "minari:D4RL/door/human-v2" for name in found[1:])


def test_a_base_config_in_other_words_is_the_same(folder):
    """A default that is written out, and devices, which may differ when a sweep goes on."""
    text = (folder / "base.yaml").read_text()
    (folder / "base.yaml").write_text(text + "\nvf_coef: 0.5\n" if "vf_coef" not in text else text)
    sweep(folder, {"devices": 1}, show=False)


def test_the_division_into_blocks_does_not_depend_on_the_memory_when_going_on(folder, monkeypatch):
    expected = rows(folder)
    shutil.rmtree(folder / "blocks" / "rung-0-000-002")
    monkeypatch.setattr(stages.memory, "available", lambda num_devices: 1)  # enough for one run at a time
    sweep(folder, show=False)
    assert rows(folder) == expected


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": 64, "final": [1.0], "evaluations": [[]]}'])
def test_a_damaged_result_is_one_line(folder, content):
    expected, path = rows(folder), folder / "blocks" / "rung-0-000-001" / "result.json"
    path.write_text(content)
    with mistake("rung-0-000-001/result.json must", "delete it"):
        sweep(folder, show=False)
    path.unlink()
    sweep(folder, show=False)
    assert rows(folder) == expected


@pytest.mark.parametrize("content", ["{", "[0]", '["2"]', json.dumps([2, 2])])
def test_a_damaged_division_is_one_line(folder, content):
    (folder / "blocks" / "rung-0.json").write_text(content)
    with mistake("rung-0.json must"):
        sweep(folder, show=False)

"""Starts of runs and sweeps that are killed before their config is written: the same command starts anew."""

import shutil

import pytest
from small_sweeps import a_sweep, compiled_once
from tiny_runs import SMALL

from rlkit import ConfigError
from rlkit.runs import files, loop, run_directory
from rlkit.runs.sweeps.sweep import sweep


@pytest.fixture(autouse=True, scope="module")
def compiled():
    with compiled_once():
        yield


def states_of_a_start(monkeypatch, out, config, start):
    """Copies of the folder `out` before each change of the disk, up to the moment when it holds `config`."""
    copies, seen = [], set()

    def copy(name, path):
        if not out.exists() or (out / config).exists():
            return
        names = frozenset(str(entry.relative_to(out)) for entry in out.rglob("*"))
        if names not in seen:
            seen.add(names)
            copies.append(out.with_name(f"killed-{len(copies)}"))
            shutil.copytree(out, copies[-1])

    with monkeypatch.context() as patched:
        patched.setattr(files, "before_operation", copy)
        start(out)
    return copies


def test_train_takes_the_folder_of_a_start_that_was_killed(tmp_path, monkeypatch):
    def first(out, **source):
        return loop.train(SMALL, lambda line, state: True, out=out, show=False, **source)

    source = first(tmp_path / "source").run
    out = tmp_path / "run"
    left = states_of_a_start(monkeypatch, out, run_directory.CONFIG, lambda out: first(out, init_from=source))
    assert {frozenset(entry.name for entry in folder.iterdir()) for folder in left} >= {
        frozenset({".lock", "checkpoints", "versions.json"}),
        frozenset({".lock", "checkpoints", "versions.json", "init_from", ".tmp-config.yaml"}),
    }
    for folder in left[:-1]:
        assert run_directory.create(folder) == folder
    for folder in left[-1:]:
        first(folder)
        assert (folder / run_directory.CONFIG).is_file()
        assert not (folder / run_directory.INIT_FROM).exists(), "of the start before"
        assert not list(folder.glob(".tmp-*"))
    with pytest.raises(ConfigError, match="must not exist yet or be empty"):
        first(out)


def test_sweep_takes_the_folder_of_a_start_that_was_killed(tmp_path, monkeypatch):
    source = a_sweep(tmp_path, trials=1, seeds_per_trial=1, total_steps=64, log_every=None)

    def first(out):
        return sweep(source, out=out, show=False)

    left = states_of_a_start(monkeypatch, tmp_path / "sweep", run_directory.SWEEP, first)
    assert len(left) >= 6
    for folder in left[:-1]:
        assert run_directory.create(folder) == folder
    for folder in left[-1:]:
        first(folder)
        assert (folder / "trials.csv").is_file()
        assert not list(folder.glob(".tmp-*"))


@pytest.mark.parametrize("name", ["base.yaml", "config.yaml", "metrics.jsonl", "checkpoints/note", ".tmp-mine", "x"])
def test_other_files_are_not_taken_for_those_of_a_start(tmp_path, name):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / name).write_text("mine")
    with pytest.raises(ConfigError, match="must not exist yet or be empty"):
        run_directory.create(tmp_path / "run")
    assert (tmp_path / "run" / name).read_text() == "mine"

"""Sweeps whose trials Optuna chooses: batches, restarts, workers that share a study and die."""

import json
import time

import pytest
from mistakes import mistake
from small_sweeps import Killed, a_sweep, compiled_once, rows

from rlkit import ConfigError
from rlkit.runs import files
from rlkit.runs.sweeps import optuna_study
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.sweep import sweep

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.thorough

KEYS = {"total_steps": 128, "trials": 4, "sampler": "optuna", "batch": 2, "gae_lambda": {"values": [0.8, 0.95]}}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    with compiled_once():
        yield


def load_study(database):
    return optuna.load_study(study_name="sweep-mine", storage=optuna_study.open_storage(f"sqlite:///{database}"))


def test_a_study_knows_all_trials_and_their_scores(tmp_path):
    swept = sweep(a_sweep(tmp_path, **KEYS), out=tmp_path / "sweep", show=False)
    study = load_study(swept.folder / "study.db")
    told = {trial.number: trial for trial in study.trials}
    found = rows(swept.folder)
    assert len(found) == len(told) == 4
    for row in found:
        trial = told[int(row["trial"])]
        assert trial.value == pytest.approx(float(row["score"]), rel=1e-4)
        assert trial.params["learning_rate"] == pytest.approx(float(row["learning_rate"]), rel=1e-5)


INVALID = {"num_envs": {"values": [4, 3]}, "num_minibatches": {"values": [2, 32]}, "seeds_per_trial": 1}


@pytest.mark.slow
def test_values_that_do_not_fit_together_are_a_failed_trial(tmp_path, capsys):
    """32 minibatches do not divide 3 * 16 rows."""
    keys = KEYS | INVALID | {"total_steps": 64, "batch": 4, "trials": 4}
    swept = sweep(a_sweep(tmp_path, **keys), out=tmp_path / "sweep")
    assert "is invalid: num_minibatches=32 must divide" in capsys.readouterr().err
    study = load_study(swept.folder / "study.db")
    for row, told in zip(rows(swept.folder), study.trials, strict=True):
        invalid = (row["num_envs"], row["num_minibatches"]) == ("3", "32")
        assert (row["status"], told.state.name) == (("invalid", "FAIL") if invalid else ("done", "COMPLETE"))


def test_a_sweep_without_a_valid_trial_is_one_line(tmp_path, monkeypatch):
    both = {"num_envs": 3, "num_minibatches": 32, "gae_lambda": 0.8, "learning_rate": 0.1}
    monkeypatch.setattr(optuna_study.Study, "_values", lambda self, trial: both)
    with pytest.raises(ConfigError, match="num_minibatches=32 must divide"):
        sweep(a_sweep(tmp_path, **KEYS | INVALID), out=tmp_path / "sweep", show=False)


def test_killed_twice_it_asks_for_the_same_trials(tmp_path, monkeypatch):
    source, broken = a_sweep(tmp_path, **KEYS | {"trials": 6}), tmp_path / "broken"
    expected = rows(sweep(source, out=tmp_path / "whole", show=False).folder)
    for target, count in (("batches", 2), ("result.json", 2)):
        left = [count]

        def fault(name, path, target=target, left=left):
            if name == "rename" and target in str(path):
                left[0] -= 1
                if not left[0]:
                    raise Killed

        monkeypatch.setattr(files, "before_operation", fault)
        with pytest.raises(Killed):
            sweep(broken if broken.exists() else source, out=None if broken.exists() else broken, show=False)
    monkeypatch.setattr(files, "before_operation", lambda name, path: None)
    sweep(broken, show=False)
    assert rows(broken) == expected


def drawn(folder, source, number=0, size=4):
    """The values of a batch that a worker in a folder draws."""
    folder.mkdir(exist_ok=True)
    return [values for _, values in optuna_study.Study(load_sweep(source), folder).batch(number, size)]


def test_workers_of_one_study_draw_different_trials(tmp_path):
    """Also one that joins a study later; a worker alone draws the same ones in another study."""
    source = a_sweep(tmp_path, **KEYS, storage=f"sqlite:///{tmp_path}/shared.db")
    rates = [values["learning_rate"] for name in "abc" for values in drawn(tmp_path / name, source)]
    assert len(set(rates)) == 12
    alone = a_sweep(tmp_path, **KEYS, storage=f"sqlite:///{tmp_path}/other.db")
    again = [values["learning_rate"] for values in drawn(tmp_path / "d", alone)]
    assert again == rates[:4]
    later = drawn(tmp_path / "d", alone, number=1)
    assert not {values["learning_rate"] for values in later} & set(again)


def test_a_worker_fails_no_trial_of_another_in_a_folder_of_the_same_path(tmp_path):
    """As two machines may have it."""
    source = a_sweep(tmp_path, **KEYS, storage=f"sqlite:///{tmp_path}/shared.db")
    drawn(tmp_path / "here", source)
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    drawn(tmp_path / "here", source)
    study = load_study(tmp_path / "shared.db")
    assert [trial.state.name for trial in study.trials] == ["RUNNING"] * 8


def test_optuna_learns_in_a_short_sweep_by_default(tmp_path):
    """Of 12 trials in batches of 2 the first 6 are random; others depend on the scores of those."""
    source = a_sweep(tmp_path, **KEYS | {"batch": None, "trials": 12})
    settings = load_sweep(source).settings
    found = []
    for sign in (1, -1):
        (tmp_path / f"sweep{sign}").mkdir()
        study, values = optuna_study.Study(load_sweep(source), tmp_path / f"sweep{sign}"), []
        for number in range(4):
            asked = study.batch(number, optuna_study.batch_size(settings))
            values.append([value for _, value in asked])
            for known, value in asked:
                study.tell(known, sign * value["learning_rate"])
        found.append(values)
    assert found[0][:3] == found[1][:3]
    assert found[0][3] != found[1][3]
    sizes = [optuna_study.batch_size(settings.model_copy(update={"trials": n})) for n in (1, 16, 64, 128, 1000)]
    assert sizes == [1, 2, 8, 16, 16]


def test_the_size_of_batches_is_shown_and_a_lost_or_damaged_study_is_one_line(tmp_path, capsys):
    folder = sweep(a_sweep(tmp_path, **KEYS | {"batch": None, "trials": 1}), out=tmp_path / "sweep").folder
    assert "optuna: 1 trial(s) in batches of 1" in capsys.readouterr().err
    database, batch = folder / "study.db", folder / "batches" / "000.json"
    for change, parts in (
        (lambda: batch.write_text("[[0"), ["batches/000.json must", "put it back"]),
        (lambda: batch.write_text("[[7, {}]]"), ["study.db must", "lacks 7; put it back"]),
        (lambda: database.write_text("nothing"), ["study.db must be a database"]),
        (database.unlink, ["study.db must", "is missing; put it back"]),
    ):
        change()
        with mistake(*parts):
            sweep(folder, show=False)
    assert not database.exists()


def test_a_budget_bounds_the_trials_of_optuna(tmp_path):
    """A trial takes 64 steps with each of two seeds."""
    keys = KEYS | {"total_steps": 64, "budget": 2 * 64 * 3 + 1}
    swept = sweep(a_sweep(tmp_path, **keys), out=tmp_path / "sweep", show=False)
    assert len(swept.results) == 3


def test_trials_of_a_dead_worker_are_asked_for_again(tmp_path, monkeypatch):
    """A worker asks for two trials and dies; another one fails them after the grace period and gets their values."""
    monkeypatch.setattr(optuna_study, "_HEARTBEAT", 1)
    monkeypatch.setattr(optuna_study, "_GRACE", 1)
    storage = f"sqlite:///{tmp_path}/shared.db"
    source = a_sweep(tmp_path, **KEYS, storage=storage, study="ours")
    (tmp_path / "dead").mkdir()
    dead = optuna_study.Study(load_sweep(source), tmp_path / "dead")
    asked = dead.batch(0, 2)
    with dead.alive([number for number, _ in asked]):
        pass  # one heartbeat
    time.sleep(2.5)
    swept = sweep(source, {"storage": storage}, out=tmp_path / "alive", show=False)
    values = [json.dumps(row.trial.values) for row in swept.results]
    assert all(json.dumps(lost) in values for _, lost in asked)
    study = optuna.load_study(study_name="ours", storage=optuna_study.open_storage(storage))
    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == 2
    assert states.count("COMPLETE") == 4

"""Sweeps whose trials Optuna chooses: batches, restarts, workers that share a study and die."""

import json
import time

import pytest
from small_sweeps import Killed, a_sweep, rows

from rlkit.runs import files
from rlkit.runs.sweeps import optuna_study
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.sweep import sweep

optuna = pytest.importorskip("optuna")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("default::ResourceWarning")]

KEYS = {"total_steps": 256, "log_every": None, "sampler": "optuna", "batch": 2, "gae_lambda": {"values": [0.8, 0.95]}}


def test_a_study_knows_all_trials_and_their_scores(tmp_path):
    swept = sweep(a_sweep(tmp_path, **KEYS), out=tmp_path / "sweep", show=False)
    study = optuna.load_study(study_name="sweep-mine", storage=f"sqlite:///{swept.folder}/study.db")
    told = {trial.number: trial for trial in study.trials}
    found = rows(swept.folder)
    assert len(found) == len(told) == 5
    for row in found:
        trial = told[int(row["trial"])]
        assert trial.value == pytest.approx(float(row["score"]), rel=1e-4)
        assert trial.params["learning_rate"] == pytest.approx(float(row["learning_rate"]), rel=1e-5)


def test_killed_twice_it_asks_for_the_same_trials(tmp_path, monkeypatch):
    expected = rows(sweep(a_sweep(tmp_path, **KEYS), out=tmp_path / "whole", show=False).folder)
    broken, source = tmp_path / "broken", a_sweep(tmp_path, **KEYS)
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
    swept = sweep(source, out=tmp_path / "alive", show=False)
    values = [json.dumps(row.trial.values) for row in swept.results]
    assert all(json.dumps(lost) in values for _, lost in asked)
    study = optuna.load_study(study_name="ours", storage=storage)
    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == 2
    assert states.count("COMPLETE") == 5

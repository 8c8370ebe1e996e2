"""Sweeps whose trials Optuna chooses: batches, restarts, workers that share a study and die."""

import csv
import json

import pytest

from rlkit.runs import files
from rlkit.runs.config import strict_yaml
from rlkit.runs.sweeps import optuna_study
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.sweep import sweep

optuna = pytest.importorskip("optuna")
pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("default::ResourceWarning")]

KEYS = {
    "config": "ppo/cartpole",
    "num_envs": 4,
    "num_steps": 16,
    "num_minibatches": 2,
    "num_epochs": 1,
    "hidden_sizes": [8],
    "total_steps": 256,
    "eval_episodes": 4,
    "trials": 5,
    "seeds_per_trial": 2,
    "sampler": "optuna",
    "batch": 2,
    "learning_rate": {"log_uniform": [1e-4, 1e-1]},
    "gae_lambda": {"values": [0.8, 0.95]},
}


def a_sweep(folder, **keys):
    path = folder / "mine.yaml"
    path.write_text(strict_yaml.dump(KEYS | keys))
    return path


def table(folder):
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


class Killed(BaseException):
    """In place of kill -9."""


def test_a_study_knows_all_trials_and_their_scores(tmp_path):
    swept = sweep(a_sweep(tmp_path), out=tmp_path / "sweep", show=False)
    study = optuna.load_study(study_name="sweep-mine", storage=f"sqlite:///{swept.folder}/study.db")
    told = {trial.number: trial for trial in study.trials}
    rows = table(swept.folder)
    assert len(rows) == len(told) == 5
    for row in rows:
        trial = told[int(row["trial"])]
        assert trial.value == pytest.approx(float(row["score"]), rel=1e-4)
        assert trial.params["learning_rate"] == pytest.approx(float(row["learning_rate"]), rel=1e-5)


def test_killed_twice_it_asks_for_the_same_trials(tmp_path, monkeypatch):
    expected = table(sweep(a_sweep(tmp_path), out=tmp_path / "whole", show=False).folder)
    broken, source = tmp_path / "broken", a_sweep(tmp_path)
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
    assert table(broken) == expected


def test_trials_of_a_dead_worker_are_asked_for_again(tmp_path, monkeypatch):
    """A worker asks for two trials and dies; another one fails them after the grace period and gets their values."""
    monkeypatch.setattr(optuna_study, "_HEARTBEAT", 1)
    monkeypatch.setattr(optuna_study, "_GRACE", 1)
    storage = f"sqlite:///{tmp_path}/shared.db"
    source = a_sweep(tmp_path, storage=storage, study="ours")
    (tmp_path / "dead").mkdir()
    dead = optuna_study.Study(load_sweep(source), tmp_path / "dead")
    asked = dead.batch(0, 2)
    with dead.alive([number for number, _ in asked]):
        pass  # one heartbeat
    import time

    time.sleep(2.5)
    swept = sweep(source, out=tmp_path / "alive", show=False)
    values = [json.dumps(row.trial.values) for row in swept.results]
    assert all(json.dumps(lost) in values for _, lost in asked)
    study = optuna.load_study(study_name="ours", storage=storage)
    states = [trial.state.name for trial in study.trials]
    assert states.count("FAIL") == 2
    assert states.count("COMPLETE") == 5

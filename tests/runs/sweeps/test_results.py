"""Scores and tables of sweeps."""

import signal
from pathlib import Path

import pytest
from small_sweeps import a_sweep

from rlkit.cli import main
from rlkit.runs.sweeps import results
from rlkit.runs.sweeps import sweep as sweeps
from rlkit.runs.sweeps.blocks import Outcome
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.trials import Trial


@pytest.fixture
def small(tmp_path):
    """A small sweep."""
    return load_sweep(a_sweep(tmp_path))


def a_result(small, number, rung, step, of_seed):
    """The result of a trial that ran in a rung."""
    values, size = {"learning_rate": 10.0 ** -(number + 1)}, len(of_seed)
    trial = Trial(number, values, small.trial_config(values))
    small = small._replace(settings=small.settings.model_copy(update={"seeds_per_trial": size}))
    outcomes = [Outcome(number, seed, Path(), seed, size, rung, step, score, []) for seed, score in enumerate(of_seed)]
    return results.score(trial, outcomes, small, ended=True)


@pytest.mark.parametrize("of_seed", [[3.0], [3.0, 7.0], [3.0, 9.0, 4.0]])
def test_an_interval_of_up_to_three_seeds_is_their_range(small, of_seed):
    result = a_result(small, 0, 0, 64, of_seed)
    assert result.interval == (min(of_seed), max(of_seed))
    comment = results.best_config(result, small).splitlines()[0]
    assert f"range [{min(of_seed):g}, {max(of_seed):g}] over {len(of_seed)} seed(s)" in comment
    assert "95%" not in comment


def test_an_interval_of_more_seeds_is_a_bootstrap_interval(small):
    comment = results.best_config(a_result(small, 0, 0, 64, [1.0, 2.0, 3.0, 4.0]), small).splitlines()[0]
    assert "95% interval [" in comment


def test_what_a_sweep_returns_is_two_lines(small):
    found = [a_result(small, number, 0, 64, [1.0 + number]) for number in (1, 0)]
    first, second = repr(sweeps.Swept(Path("runs/x"), found, None, 1)).splitlines()
    assert first == "Swept(folder='runs/x', 2 trials)"
    assert second == "  best score 2 (trial 1): learning_rate=0.01"
    stopped = repr(sweeps.Swept(Path("runs/x"), [], signal.SIGINT, 1))
    assert stopped == "Swept(folder='runs/x', 0 trials, stopped by SIGINT)\n  no trial has a score"


def test_columns_of_seeds_count_from_the_seed_of_a_trial_where_seeds_are_swept(tmp_path):
    for keys, names in (({"seed": 5}, ["seed_5", "seed_6"]), ({"seed": {"values": [3, 8]}}, ["seed+0", "seed+1"])):
        header = results.table([], load_sweep(a_sweep(tmp_path, **{"config": "ppo/cartpole"} | keys)))[0]
        assert [name for name in header if name.startswith("seed") and name != "seed"] == names


def test_a_table_that_stops_at_ten_trials_has_a_line_about_the_rest(small, tmp_path, capsys, monkeypatch):
    for count, last in ((10, None), (12, "10 of 12 trials; all are in trials.csv")):
        found = [a_result(small, number, 0, 64, [1.0, 2.0]) for number in range(count)]
        swept = sweeps.Swept(tmp_path / "mine.yaml", found, None, 1)
        monkeypatch.setattr(sweeps, "sweep", lambda *args, swept=swept, **more: swept)
        assert main(["sweep", str(tmp_path / "mine.yaml")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1 + 10 + (last is not None) + 3
        if last is not None:
            assert lines[11] == last


def test_only_the_best_of_an_unfinished_sweep_is_called_the_best_so_far(small):
    """Where all trials of the last rung diverged, the best is one that was stopped, and the sweep has ended."""
    result = a_result(small, 0, 0, 64, [1.0, 2.0])
    assert result.status == "unfinished"
    assert "so far" in results.best_config(result, small).splitlines()[0]
    assert "so far" not in results.best_config(result._replace(status="stopped"), small).splitlines()[0]

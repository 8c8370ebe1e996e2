"""Sweeps that run: the scores of single runs, stopped and killed anywhere, with halving, groups and Optuna."""

import json
import signal

import numpy as np
import pytest
from command_line import compilations_of_commands
from small_sweeps import SMALL, Killed, a_sweep, compiled_once, rows

from rlkit import ConfigError
from rlkit.cli import main
from rlkit.ops.statistics import iqm
from rlkit.runs import files, load_config, train
from rlkit.runs.reports import sweep_figures
from rlkit.runs.session import Session
from rlkit.runs.sweeps import results
from rlkit.runs.sweeps.blocks import Outcome
from rlkit.runs.sweeps.config import load_sweep
from rlkit.runs.sweeps.results import Result, best
from rlkit.runs.sweeps.sweep import sweep
from rlkit.runs.sweeps.trials import Trial, draw

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    with compiled_once():
        yield


def test_trials_score_as_runs_by_themselves(tmp_path):
    """Of a block whose runs do not fill its size, and of two groups."""
    keys = {"num_epochs": {"values": [1, 2]}, "learning_rate": {"values": [1e-4, 1e-3, 1e-2, 3e-2, 1e-1]}}
    swept = sweep(a_sweep(tmp_path, **keys, sampler="grid", runs_at_once=4), out=tmp_path / "sweep", show=False)
    found = rows(swept.folder)
    assert [row["status"] for row in found] == ["done"] * 10
    assert swept.num_programs == len({row["num_epochs"] for row in found}) == 2
    assert len(list((swept.folder / "blocks").glob("rung-0-*-002"))) == 2  # the third block of each group has two runs
    row = next(row for row in found if (row["num_epochs"], float(row["learning_rate"])) == ("2", 1e-1))
    config = {key: value for key, value in SMALL.items() if key not in ("config", "trials", "seeds_per_trial")}
    config |= {"learning_rate": float(row["learning_rate"]), "num_epochs": int(row["num_epochs"]), "num_seeds": 4}
    alone = train(load_config("ppo/cartpole", config), out=tmp_path / f"run-{row['trial']}", show=False)
    expected = alone.evaluation["mean_of_seed"][:2]  # of the shape of a block
    np.testing.assert_allclose([float(row["seed_0"]), float(row["seed_1"])], expected, rtol=1e-3)
    assert float(row["score"]) == pytest.approx(float(iqm(np.array(expected, np.float32))), rel=1e-3)
    top = max(found, key=lambda row: float(row["score"]))
    assert f"trial {top['trial']}:" in (swept.folder / "best.yaml").read_text()
    config = load_config(swept.folder / "best.yaml")
    assert (config.hyper["learning_rate"], config.run.num_seeds) == (float(top["learning_rate"]), 2)
    assert swept.results[0].trial.number == int(top["trial"])


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"halving": 2}, {"eval_every": 64, "objective": "area", "halving": 3}])
def test_killed_anywhere_it_goes_on_with_the_same_table(tmp_path, monkeypatch, keys):
    path = a_sweep(tmp_path, **keys)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sweep(path, out=whole, show=False)
    expected = (whole / "trials.csv").read_text()
    operations = []
    monkeypatch.setattr(files, "before_operation", lambda name, path: operations.append(name))
    sweep(path, out=tmp_path / "counted", show=False)
    total, deaths = len(operations), 0
    begun = operations.index("append")  # the folder is there
    for place in np.linspace(begun, total - 1, 3).astype(int).tolist():
        left = [place]

        def fault(name, path, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        monkeypatch.setattr(files, "before_operation", fault)
        try:
            sweep(*([broken] if broken.exists() else [path]), out=None if broken.exists() else broken, show=False)
        except Killed:
            deaths += 1
    monkeypatch.setattr(files, "before_operation", lambda name, path: None)
    sweep(broken, show=False)
    assert deaths >= 2
    assert (broken / "trials.csv").read_text() == expected
    assert (broken / "best.yaml").read_text() == (whole / "best.yaml").read_text()


def test_equal_scores_are_ordered_by_their_means():
    """The IQM of four seeds leaves out the worst of them."""

    def result(number, rung, score, of_seed):
        return Result(Trial(number, {}, None), "done", rung, 8, score, (0.0, 0.0), of_seed, [])

    uneven, even = result(0, 1, 500.0, [500, 180, 500, 500]), result(1, 1, 500.0, [500, 500, 490, 500])
    short, lost = result(2, 0, 600.0, [600] * 4), result(3, 1, None, [None, 1, 1, 1])
    assert sorted([lost, short, uneven, even], key=lambda one: one.order) == [even, uneven, short, lost]
    assert best([lost, uneven, even]) is even


def test_halving_stops_the_worst(tmp_path):
    swept = sweep(a_sweep(tmp_path, halving=3, trials=3, rungs=2), out=tmp_path / "sweep", show=False)
    found = rows(swept.folder)
    assert sorted(row["status"] for row in found) == ["done", "stopped", "stopped"]
    assert {row["step"] for row in found if row["status"] == "stopped"} == {"64"}
    assert {row["step"] for row in found if row["status"] == "done"} == {"192"}
    # Those that went on were the best at the rung, and go on as a run that was never stopped.
    first = {row["trial"]: row for row in rung_scores(swept)}
    on = {row["trial"] for row in found if row["status"] == "done"}
    assert min(first[trial]["score"] for trial in on) >= max(first[t]["score"] for t in first if t not in on)
    straight = sweep(a_sweep(tmp_path, trials=3), out=tmp_path / "straight", show=False)
    expected = {row["trial"]: row for row in rows(straight.folder)}
    for trial in on:
        mine = next(row for row in found if row["trial"] == trial)
        assert float(mine["score"]) == pytest.approx(float(expected[trial]["score"]), rel=1e-3)


@pytest.mark.slow
def test_trials_whose_updates_differ_in_size_compete_by_score(tmp_path):
    """Updates of 64 and of 192 steps end the first rung at 704 and at 768 steps; a rate of 1e-4 learns nothing."""
    keys = {"num_envs": {"values": [4, 12]}, "learning_rate": {"values": [1e-2, 1e-4]}, "sampler": "grid"}
    keys |= {"total_steps": 2000, "log_every": None, "env_kwargs.max_steps_in_episode": 500, "halving": 3, "rungs": 2}
    found = rows(sweep(a_sweep(tmp_path, **keys), out=tmp_path / "sweep", show=False).folder)
    assert [(row["status"], row["step"]) for row in found] == [
        ("done", "2048"),
        ("stopped", "704"),
        ("done", "2112"),
        ("stopped", "768"),
    ]


def rung_scores(swept):
    """Scores at the first rung, from its block's result."""
    (path,) = (swept.folder / "blocks").glob("rung-0-*")
    runs, final = (json.loads((path / name).read_text()) for name in ("runs.json", "result.json"))
    scores: dict[int, list[float]] = {}
    for (trial, *_), score in zip(runs, final["final"], strict=True):
        scores.setdefault(trial, []).append(score)
    return [{"trial": str(trial), "score": np.mean(of_seed)} for trial, of_seed in scores.items()]


def test_a_trial_that_diverges_harms_no_other(tmp_path):
    """A learning rate of 1e30 is not finite at once; the others score as they do without it."""
    good, mixed = (
        rows(sweep(a_sweep(tmp_path, learning_rate=rates, sampler="grid"), out=tmp_path / name, show=False).folder)
        for name, rates in {"good": {"values": [1e-3, 1e-4, 1e-2]}, "mixed": {"values": [1e-3, 1e30, 1e-2]}}.items()
    )
    assert [row["status"] for row in mixed] == ["done", "diverged", "done"]
    assert mixed[1]["score"] == ""
    for mine, expected in ((mixed[0], good[0]), (mixed[2], good[2])):
        assert float(mine["score"]) == pytest.approx(float(expected["score"]), rel=1e-3)


def test_a_sweep_that_has_begun_stays_as_it_is(tmp_path):
    folder = sweep(a_sweep(tmp_path, trials=3), out=tmp_path / "sweep", show=False).folder
    with pytest.raises(ConfigError, match="goes on as it is"):
        sweep(folder, {"trials": 9}, show=False)
    config = folder / "sweep.yaml"
    config.write_text(config.read_text().replace("sampler_seed: 0", "sampler_seed: 1"))
    with pytest.raises(ConfigError, match="must hold the block of this sweep, and the sweep has changed"):
        sweep(folder, show=False)


def test_environments_outside_of_jax_run_one_by_one(tmp_path):
    keys = {"env": "gymnasium:CartPole-v1", "env_kwargs.max_steps_in_episode": None, "backend": "serial"}
    keys |= {"total_steps": 128, "trials": 2, "seeds_per_trial": 1, "halving": 2}
    swept = sweep(a_sweep(tmp_path, rungs=2, **keys), out=tmp_path / "sweep", show=False)
    assert sorted(row["status"] for row in rows(swept.folder)) == ["done", "stopped"]
    assert all(row["score"] for row in rows(swept.folder))


def test_the_command_stops_at_a_signal_and_goes_on(tmp_path, monkeypatch, capsys):
    """SIGTERM in the middle of a block; then the folder alone, to the end."""
    path, out, metric_line = a_sweep(tmp_path, trials=3), tmp_path / "sweep", Session._metric_line

    def terminate(self, *given):
        if self.step == 128:
            signal.raise_signal(signal.SIGTERM)
        return metric_line(self, *given)

    with compilations_of_commands():
        with monkeypatch.context() as patch:
            patch.setattr(Session, "_metric_line", terminate)
            assert main(["sweep", str(path), "--out", str(out)]) == 128 + signal.SIGTERM
        assert "continue with: rlkit sweep" in " ".join(capsys.readouterr().err.split())
        assert [row["status"] for row in rows(out)] == ["waiting"] * 3
        assert main(["sweep", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("trial\tstatus\tstep\tscore")
    assert [row["status"] for row in rows(out)] == ["done"] * 3
    whole = sweep(path, out=tmp_path / "whole", show=False).folder
    assert (out / "trials.csv").read_text() == (whole / "trials.csv").read_text()


def test_mistakes_of_the_command(tmp_path, capsys):
    assert main(["sweep", "ppo/cartpole"]) == 2
    assert "must be a sweep, and it is a run's" in capsys.readouterr().err
    assert main(["sweep", "x", "--help"]) == 0
    assert "--seeds_per_trial 3" in capsys.readouterr().out


@pytest.mark.slow
def test_a_signal_between_two_rungs_stops_it_and_nothing_counts_as_done(tmp_path, monkeypatch, capsys):
    path, out = a_sweep(tmp_path, halving=3, trials=3, rungs=2), tmp_path / "sweep"
    whole = sweep(path, out=tmp_path / "whole", show=False).folder
    write = results.write

    def interrupt(*arguments):
        write(*arguments)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(results, "write", interrupt)
    assert sweep(path, out=out).signal == signal.SIGINT
    assert "continue with: rlkit sweep" in " ".join(capsys.readouterr().err.split())
    assert sorted(row["status"] for row in rows(out)) == ["stopped", "stopped", "unfinished"]
    assert "of a sweep that has not ended" in (out / "best.yaml").read_text()
    assert sweep(out, show=False).signal is None
    for name in ("trials.csv", "best.yaml"):
        assert (out / name).read_text() == (whole / name).read_text()
    ordered = [row[0] for row in sweep_figures.ranked(sweep_figures.read_trials(out))]
    assert ordered == [str(result.trial.number) for result in sweep(out, show=False).results]


def test_a_trial_has_a_score_once_all_of_its_seeds_have_one(tmp_path):
    config = load_sweep(a_sweep(tmp_path, trials=1))
    trial = draw(config)[0]
    step = trial.config.num_updates * trial.config.steps_per_update
    one, two = (Outcome(0, seed, tmp_path, 0, 1, 0, step, 10.0, []) for seed in (0, 1))
    half, whole = (results.score(trial, some, config, ended=True) for some in ([one], [one, two]))
    assert (half.status, half.score, half.of_seed) == ("unfinished", None, [10.0])
    assert (whole.status, whole.score) == ("done", 10.0)

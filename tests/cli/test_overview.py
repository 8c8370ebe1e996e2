"""`rlkit runs` and `rlkit compare`: runs side by side, from their files alone."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tiny_runs import SMALL

from rlkit import cli
from rlkit.runs import loop, overview, run_directory
from rlkit.types import ConfigError

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("compiled_once")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs: finished, stopped with another learning rate, and one whose config cannot be read."""
    folder = tmp_path_factory.mktemp("runs")
    loop.train(SMALL, out=folder / "a", show=False)
    stop = lambda line, state: line["step"] == 160  # noqa: E731
    stopped = loop.train({**SMALL, "learning_rate": 0.02, "seed": 3}, stop, out=folder / "b", show=False)
    (stopped.run / "eval.json").unlink()
    damaged = run_directory.create(folder / "c")
    (damaged / "config.yaml").write_text("agent: [ppo\n")
    return folder


def rows(capsys):
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_runs_are_listed(folder, capsys):
    assert cli.main(["runs", str(folder)]) == 0
    header, first, second, damaged = rows(capsys)
    assert header == ["run", "agent", "environment", "state", "steps", "return", "of", "minutes", "differs in"]
    evaluation = json.loads((folder / "a" / "eval.json").read_text())
    assert first[:7] == [
        str(folder / "a"),
        "ppo",
        "CartPole-v1",
        "finished",
        "320 of 320",
        f"{evaluation['mean']:.4g}",
        "greedy",
    ]
    assert second[3:5] == ["stopped", "160 of 320"]
    assert second[6] == "training"
    assert first[8] == "seed=0, learning_rate=0.0003"
    assert second[8] == "seed=3, learning_rate=0.02"
    assert damaged[3].startswith("damaged: config=")


def test_a_run_that_is_trained_now_is_marked(folder):
    assert overview.read_run(folder / "a").state == "finished"
    with run_directory.locked(folder / "a"):
        assert overview.read_run(folder / "a").state == "training"
    assert overview.read_run(folder / "a").state == "finished"


def test_runs_are_compared(folder, capsys):
    assert cli.main(["compare", str(folder / "a"), str(folder / "b")]) == 0
    table = {row[0]: row[1:] for row in rows(capsys)}
    assert table[""] == [str(folder / "a"), str(folder / "b")]
    assert table["state"] == ["finished", "stopped"]
    assert table["config: learning_rate"] == ["0.0003", "0.02"]
    assert table["return, greedy mean"][1] == "-"
    assert "config: num_envs" not in table
    assert not any(name.startswith("version") for name in table)


@pytest.mark.parametrize(("means", "over", "text"), [
    ([1.0, 2.0], "seeds", "range over seeds"),
    ([1.0, 2.0, None, 3.0], "seeds", "range over seeds"),
    ([1.0, 2.0, 3.0, 4.0], "seeds", "95% interval over seeds"),
    ([1.5], "episodes", "95% interval over episodes"),
])  # fmt: skip
def test_an_interval_over_few_runs_is_called_their_range(folder, means, over, text):
    run = overview.read_run(folder / "a")
    scores = {"iqm": 1.5, "interval": [1.0, 2.0], "interval_over": over, "mean_of_seed": means, "episodes": 20}
    table = {row[0]: row[1] for row in overview.comparison([run._replace(evaluation=scores)])[1]}
    assert table["IQM [interval]"] == f"1.5 [1, 2], {text}"


def test_an_evaluation_of_many_episodes_is_read(folder):
    evaluation = json.loads((folder / "a" / "eval.json").read_text()) | {"returns": [[1 / 3] * 100_000]}
    (Path(shutil.copytree(folder / "a", folder / "many" / "a")) / "eval.json").write_text(json.dumps(evaluation))
    run = overview.read_run(folder / "many" / "a")
    assert run.state == "finished"
    assert len(run.episode_returns) == 100_000


def test_an_evaluation_of_an_earlier_step_is_no_score(folder):
    stale = Path(shutil.copytree(folder / "b", folder / "stale" / "b"))
    evaluation = json.loads((folder / "a" / "eval.json").read_text()) | {"step": 96}
    (stale / "eval.json").write_text(json.dumps(evaluation))
    table = {row[0]: row[1] for row in overview.comparison([overview.read_run(stale)])[1]}
    assert table["steps"] == "160"
    assert {table[name] for name in ("return, greedy mean", "IQM [interval]", "episodes, seeds")} == {"-"}
    assert overview.read_run(stale).score[1] == "training"


def test_a_terminal_gets_a_fitted_table(folder, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(["runs", str(folder)]) == 0
    assert "finished" in capsys.readouterr().out


def test_an_empty_folder_is_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="`rlkit train` makes"):
            overview.find(path)


def test_a_symlink_to_a_run_is_that_run(folder, tmp_path):
    link = tmp_path / "newest"
    link.symlink_to(folder / "a")
    assert run_directory.existing(link) == folder / "a"
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(ConfigError, match=r"run="):
        run_directory.existing(link)


def test_a_path_that_is_no_run_names_runs(tmp_path, monkeypatch):
    """Of a folder of runs these are its own, and where there are none, those of ./runs; a sweep is named as one."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a", "runs/sweep-b", "other/c"):
        Path(name).mkdir(parents=True)
    for path in ("runs/a/config.yaml", "other/c/config.yaml", "runs/sweep-b/sweep.yaml"):
        Path(path).touch()
    for path, remedy in {
        "runs": "there is runs/a$",
        "other": "there is other/c$",
        "other/d": "there is other/c$",
        "a": "there is runs/a$",
        "runs/sweep-b": "it is a sweep, .* best.yaml$",
    }.items():
        with pytest.raises(ConfigError, match=f"^run='{path}' must .*; {remedy}"):
            run_directory.existing(path)

"""Well-formed JSON whose fields have other types than ours: the field is named, and its file counts as missing."""

import json

import pytest
from mistakes import assert_mistake
from report_pages import line, make_run

from rlkit import runs
from rlkit.runs import metrics, overview, scores
from rlkit.runs.pictures import curves
from rlkit.runs.reports.reading import read_runs
from rlkit.runs.reports.report import compose
from rlkit.runs.sweeps import blocks
from rlkit.runs.sweeps.blocks import Run
from rlkit.runs.sweeps.trials import Trial
from rlkit.types import ConfigError

VALUES = ["3.0", '"x"', "null", "[]", "{}", "true", "[null]", "-1", "1e400", "[[1, 2]]", '["x"]', "1" + "0" * 400]
LINE = line(20, [1.0, 2.0], episodes=[2, 2], steps_per_second=9.0, eval_return_mean=[3.0, 4.0], loss=[0.1, None])
EVALUATION = {
    "step": 20,
    "episodes": 4,
    "mean": 3.5,
    "iqm": 3.5,
    "interval": [3.0, 4.0],
    "interval_over": "seeds",
    "mean_of_seed": [3.0, 4.0],
    "seeds": [0, 1],
    "returns": [[3.0, 3.0], [4.0, 4.0]],
}
RECORDS = {
    "metrics.jsonl": LINE,
    "eval.json": EVALUATION,
    "versions.json": {"jax": "1.0"},
}


def read_all(run, folder):
    """What `report`, `watch`, `runs`, `compare` and `plot` read of a run; each succeeds or raises a line."""
    compose(read_runs([run])).render()
    found = overview.read_run(run)
    assert "\n" not in found.state
    overview.table([found])
    overview.comparison([found, found])
    scores.stored_mean(run, 20)
    for function in (
        lambda: runs.plot([run], folder / "curves"),
        lambda: curves.draw(run, name="x", title=""),
    ):
        try:
            function()
        except ConfigError as error:
            assert_mistake(error)
    return found


def a_run(path):
    run = make_run(path, [line(10, [0.0, 1.0], episodes=[1, 1]), LINE], evaluation=EVALUATION)
    (run / "config.yaml").write_text(
        "agent: ppo\nenv: CartPole-v1\ntotal_steps: 20\nnum_seeds: 2\nnum_envs: 1\nnum_steps: 1\nnum_minibatches: 1\n"
    )
    return run


def test_the_records_are_whole_to_begin_with(tmp_path):
    pytest.importorskip("plotly")
    found = read_all(a_run(tmp_path / "run"), tmp_path)
    assert found.state == "finished"
    assert found.score == (3.5, "greedy")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "field"), [(name, field) for name in RECORDS for field in RECORDS[name]])
def test_every_field_of_every_type_is_one_line(tmp_path, monkeypatch, name, field):
    pytest.importorskip("plotly")
    monkeypatch.setattr(curves, "save", lambda drawing, target: None)  # pictures take long
    run = a_run(tmp_path / "run")
    before = (run / name).read_text()
    for value in VALUES:
        changed = json.dumps(RECORDS[name] | {field: "@"}).replace('"@"', value)
        (run / name).write_text(before.replace(json.dumps(RECORDS[name]), changed))
        assert value in (run / name).read_text()
        read_all(run, tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("eval.json", '{"step": 20, "mean_of_seed": 3.0}', "mean_of_seed is 3.0"),
        ("eval.json", '{"step": 20, "mean": 1e400}', "mean is .inf"),
        ("metrics.jsonl", '{"step": 20, "return_mean": "x"}\n', "return_mean in line 1 is 'x'"),
        ("metrics.jsonl", '{"step": true}\n', "step in line 1 is true"),
        ("metrics.jsonl", '{"step": 20, "seconds": null}\n', "seconds in line 1 is null"),
    ],
)
def test_the_field_is_named(tmp_path, name, text, said):
    pytest.importorskip("plotly")
    run = a_run(tmp_path / "run")
    (run / name).write_text(text)
    found = overview.read_run(run)
    assert found.state.startswith("damaged: ")
    assert name in found.state
    assert said in found.state
    assert found.evaluation == {}
    (read,) = read_runs([run])
    assert found.state in read.notes


@pytest.mark.parametrize("field", ["step", "final", "evaluations"])
def test_the_result_of_a_block_of_every_type_is_one_line(tmp_path, field):
    result = {"step": 20, "final": [1.0], "evaluations": [[[10, 1.0]]]}
    one = [Run(Trial(0, {}, None), 0)]
    (tmp_path / blocks.RESULT).write_text(json.dumps(result))
    assert blocks.read(tmp_path, one, 1, [None]) is not None
    for value in [value for value in VALUES if (field, value) not in {("step", "3.0"), ("final", "[null]")}]:
        (tmp_path / blocks.RESULT).write_text(json.dumps(result | {field: "@"}).replace('"@"', value))
        try:
            blocks.read(tmp_path, one, 1, [None])
        except ConfigError as error:
            assert_mistake(error)


@pytest.mark.parametrize("cell", ["x", "", "-1", "1e9", "nan", "9" * 30])
def test_a_table_of_trials_without_numbers_is_one_line(tmp_path, cell):
    pytest.importorskip("plotly")
    (tmp_path / "sweep.yaml").write_text("config: base.yaml\ngamma: {values: [0.9, 0.99]}\n")
    for column in ("trial", "step", "score", "low", "high", "seed_0"):
        row = {"trial": 0, "status": "done", "step": 1, "score": 1, "low": 1, "high": 1, "seed_0": 1, "gamma": 0.9}
        row |= {column: cell}
        (tmp_path / "trials.csv").write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        try:
            runs.report(tmp_path)
        except ConfigError as error:
            assert_mistake(error)
            assert column == "trial"


def test_numbers_of_metric_lines_stay_as_they_are(tmp_path):
    run = a_run(tmp_path / "run")
    assert metrics.read(run)[-1] == LINE

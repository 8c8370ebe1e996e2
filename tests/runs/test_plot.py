"""Learning curves: the right numbers, and pictures that are pictures."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from rlkit.ops.statistics import iqm
from rlkit.runs import metrics, run_directory
from rlkit.runs.pictures import curves
from rlkit.types import ConfigError


def line(step, returns):
    return {"step": step, "return_mean": returns}


def make_run(path, lines):
    path.mkdir()
    (path / run_directory.CONFIG).write_text("agent: ppo\n")
    (path / run_directory.METRICS).write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def test_one_seed_is_its_means():
    found = curves.curve([line(10, None), line(20, 1.5), line(30, 2), line(40, None)])
    assert found.seeds == 1
    assert found.step.tolist() == [20, 30]
    assert found.center.tolist() == found.low.tolist() == found.high.tolist() == [1.5, 2.0]


def test_several_seeds_have_the_iqm_and_an_interval_around_it():
    returns = [[0.0, 0.0, 0.0, 100.0], [1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]]
    found = curves.curve([line(0, [None, 1.0, 1.0, 1.0])] + [line(10 * (i + 1), row) for i, row in enumerate(returns)])
    assert found.seeds == 4
    assert found.step.tolist() == [10, 20, 30]
    np.testing.assert_allclose(found.center, [float(iqm(np.float32(row))) for row in returns])
    assert found.center.tolist() == [0.0, 2.5, 5.0]
    assert found.low.tolist()[2] == found.high.tolist()[2] == 5.0
    assert 1.0 <= found.low[1] < 2.5 < found.high[1] <= 4.0


@pytest.mark.parametrize("lines", [[], [line(1, None)], [line(1, [1.0, None])], [line(1, [1.0]), line(2, [1.0, 2.0])]])
def test_no_curve_is_one_clear_line(lines):
    with pytest.raises(ConfigError, match=r"metrics\.jsonl must hold"):
        curves.curve(lines)


def test_a_run_without_episodes_of_its_own_is_its_evaluations():
    lines = [line(step, None) | {"eval_return_mean": value} for step, value in ((1, 1.0), (2, None), (3, 2.0))]
    found = curves.curve([*lines, line(4, None)])
    assert (found.step.tolist(), found.center.tolist(), found.greedy) == ([1, 3], [1.0, 2.0], True)
    assert curves.figure({"x": found}).axes[0].get_ylabel() == "greedy return (mean over episodes)"
    both = curves.curve([*lines, line(4, 7.0)])
    assert (both.step.tolist(), both.greedy) == ([4], False), "the two kinds of returns are not mixed"
    drawn = curves.figure({"x": found, "y": both}).axes[0]
    assert [text.get_text() for text in drawn.get_legend().get_texts()] == ["x, evaluated", "y"]


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        ("agent: ppo\n", "train longer"),
        ("agent: iql\ndataset: data\neval_every: 100\n", "train longer"),
        ("agent: iql\ndataset: data\neval_every: null\n", "train with eval_every"),
    ],
)
def test_a_run_without_a_curve_is_named_with_what_would_give_it_one(tmp_path, config, remedy):
    good = make_run(tmp_path / "good", [line(1, 1.0)])
    run = make_run(tmp_path / "bare", [line(1, None)])
    (run / run_directory.CONFIG).write_text(config)
    with pytest.raises(ConfigError, match=rf"bare/metrics\.jsonl must hold .*{remedy}$"):
        curves.plot([good, run], tmp_path / "x")


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"step": "x"}', "{}", "[" * 5000, '{"step": 1}\nnot json'])
def test_metric_lines_that_are_none(tmp_path, text):
    run = make_run(tmp_path / "run", [])
    (run / run_directory.METRICS).write_text(text + "\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl must hold one JSON object"):
        metrics.read(run)


def test_an_unfinished_last_line_is_left_out(tmp_path):
    run = make_run(tmp_path / "run", [line(1, 2.0)])
    with (run / run_directory.METRICS).open("a") as file:
        file.write('{"step": 2, "ret')
    assert metrics.read(run) == [line(1, 2.0)]


def test_runs_are_drawn_as_png_and_svg(tmp_path):
    one = make_run(tmp_path / "one", [line(i, float(i)) for i in range(1, 20)])
    many = make_run(tmp_path / "many", [line(i, [float(i), 2.0 * i, 3.0 * i]) for i in range(1, 20)])
    png, svg = curves.plot([one, many], tmp_path / "both.png", title="a title")
    assert (png, svg) == (tmp_path / "both.png", tmp_path / "both.svg")
    picture = np.asarray(Image.open(io.BytesIO(png.read_bytes())).convert("RGB"))
    assert min(picture.shape[:2]) > 300
    for color in (curves.COLORS[0], curves.COLORS[1]):
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(picture.astype(int) - wanted).sum(-1) < 12).sum() > 50, f"no line in {color}"
    assert svg.read_text().count("<path") > 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["both.png", "both.svg", "many", "one"]


def test_several_seeds_are_counted(tmp_path):
    run = make_run(tmp_path / "run", [line(i, [float(i), 2.0 * i]) for i in range(1, 5)])
    axes = curves.figure({"ppo": curves.curve(metrics.read(run), run)}).axes[0]
    assert axes.get_legend().get_texts()[0].get_text() == "ppo (2 seeds)"
    assert "IQM over seeds" in axes.get_ylabel()


def test_pyplot_is_not_touched():
    """No figure stays in pyplot's registry, where it would have to be closed."""
    from matplotlib import pyplot

    curves.figure({"x": curves.curve([line(1, 1.0), line(2, 2.0)])}).savefig(io.BytesIO())
    assert pyplot.get_fignums() == []


def test_a_picture_that_cannot_be_written(tmp_path):
    run = make_run(tmp_path / "run", [line(1, 1.0), line(2, 2.0)])
    with pytest.raises(ConfigError, match="out="):
        curves.plot([run], tmp_path / "no" / "such" / "folder")
    with pytest.raises(ConfigError, match="run="):
        curves.plot([tmp_path / "none"], tmp_path / "x")


def test_gaps_are_explained_below_the_axis():
    found = curves.curve([line(10, None), line(20, 1.5), line(30, 2.0)])
    assert found.missing == 1
    label = curves.figure({"x": found, "y": found._replace(missing=0)}).axes[0].get_xlabel()
    assert label == "environment steps\nx: no episode ended in 1 of 3 metric lines"


def test_equal_curves_are_both_visible():
    found = curves.curve([line(20, 1.5), line(30, 2.0)])
    first, second, third = (
        curves.figure({"x": found, "y": found, "z": found._replace(center=-found.center)}).axes[0].lines
    )
    assert first.get_linestyle() == third.get_linestyle() == "-"
    assert second.get_linestyle() == "--"


@pytest.mark.parametrize(
    ("scale", "unit", "last"), [(1.0, "seconds", 30.0), (60.0, "minutes", 30.0), (3600.0, "hours", 30.0)]
)
def test_time_may_be_the_horizontal_axis(scale, unit, last):
    lines = [line(step, 1.0) | {"seconds": step * scale} for step in (10, 20, 30)]
    axes = curves.figure({"x": curves.curve(lines)}, x="time").axes[0]
    assert axes.get_xlabel() == f"{unit} of training"
    assert axes.lines[0].get_xdata()[-1] == last


def test_smoothing_is_the_mean_over_the_last_lines():
    found = curves.curve([line(step, value) for step, value in ((1, 4.0), (2, 0.0), (3, 2.0), (4, 6.0))])
    np.testing.assert_allclose(found.smoothed(2).center, [4.0, 2.0, 1.0, 4.0])
    np.testing.assert_allclose(found.smoothed(3).center, [4.0, 2.0, 2.0, 8 / 3])
    np.testing.assert_allclose(found.smoothed(1).center, found.center)


def test_one_run_has_its_environment_as_title(tmp_path):
    lines = [line(20, 1.5), line(30, 2.0)]
    for name in ("a", "b"):
        (make_run(tmp_path / name, lines) / run_directory.CONFIG).write_text("env: CartPole-v1\n")
    curves.plot([tmp_path / "a"], tmp_path / "one", smooth=2, x="time")
    curves.plot([tmp_path / "a", tmp_path / "b"], tmp_path / "two")
    assert "<!-- CartPole-v1 -->" in (tmp_path / "one.svg").read_text()
    assert "<!-- CartPole-v1 -->" not in (tmp_path / "two.svg").read_text()
    for arguments in ({"x": "place"}, {"smooth": 0}):
        with pytest.raises(ConfigError, match="must be"):
            curves.plot([tmp_path / "a"], tmp_path / "one", **arguments)

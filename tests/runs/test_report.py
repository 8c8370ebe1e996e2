"""Reports: the numbers in the page, runs without numbers, and text that is no HTML."""

import html
import json
import re

import numpy as np
import pytest
from report_pages import Tags, check, content, line, make_run
from tiny_runs import SMALL

from rlkit.cli import main
from rlkit.runs import loop
from rlkit.runs.reports import diagnostics, statistics
from rlkit.runs.reports.reading import read_runs
from rlkit.runs.reports.report import report
from rlkit.types import ConfigError

pytest.importorskip("plotly")


@pytest.fixture
def two(tmp_path):
    first = [line(10, [0.0, 1.0, 2.0, 9.0], loss=[1.0, 3.0, None, 2.0]), line(20, [4.0] * 4, loss=[None] * 4)]
    second = [line(10, [1.0, 3.0]), line(20, None, episodes=0), line(30, [2.0, 6.0])]
    evaluation = {"step": 20, "mean": 2.5, "mean_of_seed": [1.0, 2.0, 3.0, 4.0], "iqm": 2.5, "interval": [1.5, 3.5]}
    evaluation |= {"interval_over": "seeds", "episodes": 8, "seeds": [0, 1, 2, 3]}
    a = make_run(tmp_path / "a", first, evaluation=evaluation, config="gamma: 0.9\n")
    b = make_run(tmp_path / "b", second, evaluation={"step": 30, "mean_of_seed": [2.0, 8.0]}, config="gamma: 0.99\n")
    return a, b


def test_curves_hold_the_returns_of_the_metric_lines(two, tmp_path):
    figures, runs = content(report(two, tmp_path / "x.html").html)
    assert runs == ["a", "b"]
    first, second = figures["Return on CartPole-v1"]["data"]
    assert first["x"] == {"steps": [10, 20], "time": [1.0, 2.0]}
    assert first["y"] == [1.5, 4.0], "the mean without the lowest and the highest quarter"
    low, high = first["band"]
    assert low[0] < 1.5 < high[0]
    assert (low[1], high[1]) == (4.0, 4.0)
    assert (second["x"]["steps"], second["y"]) == ([10, 30], [2.0, 4.0]), "no line without returns"
    assert [trace["name"] for trace in (first, second)] == ["a (4 seeds)", "b (2 seeds)"]
    (loss,) = figures["loss"]["data"]
    assert (loss["y"], loss["band"]) == ([2.0, None], [[1.0, None], [3.0, None]])


def test_final_returns_of_one_seed_are_those_of_its_episodes(two, tmp_path):
    evaluation = {"step": 10, "mean_of_seed": [3.0], "returns": [[1.0, None, 5.0]]}
    one = make_run(tmp_path / "one", [line(10, 2.0)], evaluation=evaluation)
    old = make_run(tmp_path / "old", [line(20, 2.0)], evaluation=evaluation)  # of another step
    figures, _ = content(report([one, old, two[0]], tmp_path / "x.html").html)
    boxes = {t["name"]: t["x"] for t in figures["Final returns on CartPole-v1"]["data"] if t["type"] == "box"}
    assert list(boxes.values()) == [[1.0, 2.0, 3.0, 4.0], [2.0], [1.0, 5.0]]


def test_final_returns_and_their_comparison(two, tmp_path):
    figures, _ = content(report(two, tmp_path / "x.html").html)
    boxes = {t["name"]: t for t in figures["Final returns on CartPole-v1"]["data"] if t["type"] == "box"}
    assert {name: box["x"] for name, box in boxes.items()} == {"a": [1.0, 2.0, 3.0, 4.0], "b": [2.0, 8.0]}
    centers = [t for t in figures["Final returns on CartPole-v1"]["data"] if t["type"] == "scatter"]
    errors = {t["y"][0]: (t["x"], t["error_x"]["array"], t["error_x"]["arrayminus"]) for t in centers}
    assert errors["a"] == ([2.5], [1.0], [1.0]), "those of eval.json"
    a, b = figures["Performance profile on CartPole-v1"]["data"]
    shares = dict(zip(a["x"], a["y"], strict=True))
    assert [shares[score] for score in (1.0, 2.0, 3.0, 4.0)] == [0.75, 0.5, 0.25, 0.0]
    assert (a["y"][0], a["y"][-1], b["y"][0], b["y"][-1]) == (1.0, 0.0, 1.0, 0.0)
    (table,) = figures["Probability of improvement on CartPole-v1"]["data"]
    # Of the eight pairs, the seeds of a win 3 > 2 and 4 > 2, and 2 equals 2.
    assert table["z"] == [[None, 0.3125], [0.6875, None]]


def test_configs_versions_and_devices_that_differ_are_marked(two, tmp_path):
    for run, devices in zip(two, (1, 4), strict=True):
        (run / "versions.json").write_text(json.dumps({"device": "gpu H100", "devices": devices}))
    _, configs = html.unescape(report(two, tmp_path / "x.html").html).split("<h2>Configs</h2>")
    configs, versions = configs.split("<h2>Versions and devices</h2>")
    row, mark = r'<tr( class=differs)?><th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', " class=differs"
    assert [found for found in re.findall(row, configs) if found[0]] == [(mark, "gamma", "0.9", "0.99")]
    assert re.findall(row, versions) == [("", "device", "'gpu H100'", "'gpu H100'"), (mark, "devices", "1", "4")]


GROUPS = {
    "Episodes": ["episodes", "length_mean", "return_iqm", "return_max", "return_min", "reward_mean"],
    "Evaluations": ["eval_episodes"],
    "Losses": ["critic_loss", "loss", "loss_of_values", "policy_loss"],
    "Policy": ["approx_kl", "clip_fraction", "entropy", "temperature", "update_kl"],
    "Values": ["advantage", "explained_variance", "priority", "q", "q_min"],
    "Gradients": ["grad_norm", "learning_rate"],
    "Speed and workers": ["env_restarts", "envs_idle", "learner_idle", "steps_per_second", "update_seconds"],
    "Further numbers": ["buffer_size", "mean_loss2", "quality"],
}


def test_a_number_is_in_one_group_and_groups_have_an_order(tmp_path):
    names = sorted(name for group in GROUPS.values() for name in group)
    run = make_run(tmp_path / "run", [line(10, 1.0, **dict.fromkeys(names, 1.0))])
    groups = diagnostics.groups(read_runs([run]))
    assert {group: [figure.title for figure in figures] for group, figures in groups.items()} == GROUPS
    page = report(run).html.partition("<h2>Diagnostics</h2>")[2].partition("</section>")[0]
    assert re.findall("<h3>(.*?)</h3>", page) == list(GROUPS)


def test_a_long_curve_has_few_points_that_are_means(tmp_path):
    lines = [line(step, float(step), loss=float(step)) for step in range(1, 8001)]
    figures, _ = content(report(make_run(tmp_path / "run", lines)).html)
    (trace,) = figures["Return on CartPole-v1"]["data"]
    assert len(trace["y"]) == len(trace["x"]["steps"]) == 400
    assert trace["y"][0] == 10.5, "the mean of 1 to 20"
    (loss,) = figures["loss"]["data"]
    assert (loss["band"][0][0], loss["band"][1][-1]) == (1.0, 8000.0), "no extreme is lost"


ODD = {
    "empty": [],
    "not finite": [line(10, None, loss=None), line(20, [None, None], loss=[None, None])],
    "diverged": [line(10, 1.0, loss=2.0), line(20, None, loss=None)],
    "other types": [line(10, "x", loss={"a": 1}, seconds=[])],
    "huge": [line(10, 10**400, loss=-(10**400))],
}


@pytest.mark.parametrize("lines", ODD.values(), ids=ODD)
def test_runs_without_numbers_have_a_page(tmp_path, lines, two):
    odd = make_run(tmp_path / "odd", [])
    (odd / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    for runs in ([odd], [odd, *two]):
        figures, names = content(report(runs, tmp_path / "x.html").html)
        assert len(names) == len(runs)
        values = [y for f in figures.values() for t in f["data"] if t.get("meta") == {"run": 0} for y in t["y"]]
        assert all(isinstance(y, float | str | None) for y in values)


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "versions.json", "eval.json"])
@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"step": 10, "mean": "x", "interval": 3, "mean_of_seed": 7}', '{"step": 10, "returns": [7]}']
)
def test_a_damaged_file_is_named_beside_the_other_runs(two, tmp_path, name, text):
    (two[0] / name).write_text(text + "\n")
    page = report(two, tmp_path / "x.html").html
    figures, _ = content(page)
    assert any(trace["meta"] == {"run": 1} for trace in figures["Return on CartPole-v1"]["data"])
    if text in ("{", "[1]"):
        assert re.search(rf"<li>a: damaged: .*{re.escape(name)}", page)


def test_text_of_files_is_no_html(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    lines = [line(10, [1.0, 2.0], **{evil: 1.0}), line(20, [1.0, 2.0], **{evil: 1.0})]
    run = make_run(tmp_path / "a<b", lines, config=f'"{evil}": "{evil}"\n', versions={evil: evil})
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("CartPole-v1", f"'{evil}'"))
    page = report([run, make_run(tmp_path / "other", lines)], tmp_path / "x.html").html
    tags = Tags(page)
    assert [tag for tag, _ in tags.tags].count("script") == 3, "the data, Plotly and ours"
    assert "img" not in {tag for tag, _ in tags.tags}
    assert not any(name.startswith("on") for _, attributes in tags.tags for name in attributes)
    figures, runs = content(page)
    assert runs == ["a<b", "other"]
    assert "<" not in figures[f"Return on {evil}"]["data"][0]["name"], "Plotly reads HTML"
    assert evil in "".join(tags.text)


@pytest.mark.parametrize(
    ("name", "tag", "media"),
    [
        ("policy.gif", "img", "image/gif"),
        ("policy.svg", "img", "image/svg+xml"),
        ("policy.mp4", "video", "video/mp4"),
        ("policy.webm", "video", "video/webm"),
    ],
)
def test_the_page_asks_for_nothing_from_a_network(two, tmp_path, name, tag, media):
    (two[0] / name).write_bytes(b"GIF89a")
    page = Tags(report(two, tmp_path / "x.html").html)
    sources = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert [a["src"] for t, a in page.tags if t == tag] == [f"data:{media};base64,R0lGODlh"]
    assert all(source.startswith(("data:", "#")) for source in sources)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert {"img-src data: blob:", "media-src data:"} <= set(policy.split("; "))
    assert "http" not in policy


def test_plotly_accepts_the_figures(two, tmp_path):
    figures, _ = content(report(two, tmp_path / "x.html").html)
    assert len(figures) >= 6
    for figure in figures.values():
        check(figure)
        assert figure["layout"]["xaxis"]["title"]["text"]


def test_the_command_writes_into_the_run(two, tmp_path, capsys, monkeypatch):
    assert main(["report", str(two[0])]) == 0
    assert capsys.readouterr().out.strip() == str(two[0] / "report.html")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *map(str, two)]) == 0
    assert content((tmp_path / "report.html").read_text())[1] == ["a", "b"]
    before = set(tmp_path.rglob("*.html"))
    assert main(["report", str(two[1]), "--out", "b.html"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "b.html"
    assert content((tmp_path / "b.html").read_text())[1] == ["b"]
    assert set(tmp_path.rglob("*.html")) == before | {tmp_path / "b.html"}


def test_a_run_writes_its_report_when_it_ends(tmp_path, monkeypatch):
    steps = []

    def on_chunk(line, state):
        steps.append(line["step"])
        return line["step"] == 32  # the end, as far as this process knows

    run = loop.train(SMALL | {"report": True, "total_steps": 64}, on_chunk, out=tmp_path / "run", show=False).run

    def drawn():
        page = (run / "report.html").read_text()
        figures, _ = content(page)
        return figures["policy_loss"]["data"][0]["x"]["steps"], re.search(r"state</th><td>(\w+)</td>", page)[1]

    assert drawn() == ([32], "stopped")
    assert re.search(r'<th scope="row">device</th><td>&#x27;cpu ', (run / "report.html").read_text())
    (run / "report.html").unlink()
    loop.resume(run, show=False)
    assert drawn() == ([32, 64], "finished")
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    trained = loop.resume(run, overrides={"total_steps": 96}, show=False)
    assert trained.evaluation["step"] == 96, "the run is whole where its report cannot be written"


def test_mistakes_are_one_line(two, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="run="):
        report([tmp_path / "none"])
    with pytest.raises(ConfigError, match="out="):
        report(two, tmp_path)
    with pytest.raises(ConfigError, match="out="):
        report(two, tmp_path / "no folder" / "x.html")
    with pytest.raises(ConfigError, match="runs="):
        report([])
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'rlkit-jax\[report\]'"):
        report(two)


def test_probability_of_improvement_is_a_count_of_pairs():
    generator = np.random.default_rng(1)
    x, y = generator.integers(0, 5, 6).astype(float), generator.integers(0, 5, 9).astype(float)
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in x for b in y)
    share, low, high = statistics.probability_of_improvement(x, y)
    assert share == pytest.approx(wins / 54)
    assert low < share < high
    assert statistics.probability_of_improvement(y, x)[0] == pytest.approx(1 - share)
    assert statistics.probability_of_improvement(x, x - 10) == (1.0, 1.0, 1.0)


def test_a_performance_profile_is_the_share_above():
    share, low, high = statistics.performance_profile(np.array([1.0, 2.0, 2.0, 5.0]), np.array([0.0, 1.0, 2.0, 5.0]))
    assert share.tolist() == [1.0, 0.75, 0.25, 0.0]
    assert (low[0], high[0], low[3], high[3]) == (1.0, 1.0, 0.0, 0.0)
    assert low[1] < 0.75 < high[1]


@pytest.mark.parametrize(("length", "count"), [(0, 5), (1, 5), (5, 5), (7, 5), (1000, 3)])
def test_bins_hold_every_point_once(length, count):
    parts = statistics.bins(length, count)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(length))
    sizes = [part.stop - part.start for part in parts]
    assert len(parts) == min(length, count)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_a_report_shows_its_page_in_a_notebook(two, tmp_path):
    written = report(two, tmp_path / "x.html")
    ((tag, attributes),) = Tags(written._repr_html_()).tags
    assert tag == "iframe"
    assert attributes["srcdoc"] == written.path.read_text()

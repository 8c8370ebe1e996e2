"""Reports of sweeps, and the pages in a browser."""

import re

import numpy as np
import pytest
from browser import DESKTOP, PHONE, tab
from report_pages import CHROMIUM, browse, check, content, line, make_run

from rlkit.runs.reports.report import report
from rlkit.types import ConfigError

pytest.importorskip("plotly")


TABLE = """trial,status,step,score,low,high,seed_0,seed_1,learning_rate,activation
0,done,100,3.0,2.0,4.0,2.0,4.0,0.001,tanh
1,done,100,9.0,8.0,10.0,8.0,10.0,0.1,relu
2,diverged,50,,,,,,1.0,relu
3,stopped,50,1.5,1.0,2.0,1.0,2.0,0.01,<b>
"""


def make_sweep(path, table=TABLE):
    path.mkdir()
    keys = "learning_rate: {log_uniform: [0.001, 1.0]}\nactivation: {values: [tanh, relu]}\n"
    (path / "sweep.yaml").write_text(f"config: base.yaml\nobjective: final\n{keys}")
    (path / "trials.csv").write_text(table)
    return path


def test_the_trials_of_a_sweep(tmp_path):
    page = report(make_sweep(tmp_path / "sweep")).html
    figures, runs = content(page)
    assert runs == []
    assert (tmp_path / "sweep" / "report.html").exists()
    rate = {trace["name"]: trace for trace in figures["learning_rate"]["data"]}
    assert (rate["done"]["x"], rate["done"]["y"]) == ([0.001, 0.1], [3.0, 9.0])
    assert (rate["done"]["error_y"]["array"], rate["done"]["error_y"]["arrayminus"]) == ([1.0, 1.0], [1.0, 1.0])
    assert (rate["stopped"]["x"], rate["diverged"]["x"], rate["diverged"]["y"]) == ([0.01], [1.0], [1.5])
    assert figures["learning_rate"]["layout"]["xaxis"]["type"] == "log"
    assert figures["activation"]["data"][1]["x"] == ["&lt;b&gt;"]
    (trace,) = figures["Parallel coordinates"]["data"]
    rate, activation, score = trace["dimensions"]
    assert rate["values"] == pytest.approx([-3.0, -1.0, -2.0]), "logarithms"
    assert (rate["ticktext"][0], rate["ticktext"][-1]) == ("0.001", "0.1")
    assert (activation["values"], activation["ticktext"]) == ([0, 1, 2], ["tanh", "relu", "&lt;b&gt;"])
    assert score["values"] == trace["line"]["color"] == [3.0, 9.0, 1.5]
    assert re.findall(r'<tr><th scope="row">(\d)</th>', page) == ["1", "0", "3", "2"], "the best first"
    for figure in figures.values():
        check(figure)


@pytest.mark.parametrize("table", ["", "a,b\n1,2\n", "trial,status,score,low,high,learning_rate,activation\n1,2\n"])
def test_a_damaged_table_of_a_sweep_is_one_line(tmp_path, table):
    with pytest.raises(ConfigError, match=r"trials\.csv must be the table of a sweep"):
        report(make_sweep(tmp_path / "sweep", table))


def test_a_sweep_before_its_first_trial_has_a_page(tmp_path):
    figures, _ = content(report(make_sweep(tmp_path / "sweep", TABLE.splitlines()[0] + "\n")).html)
    assert {figure["data"] == [] for figure in figures.values()} == {True}


def test_a_page_of_many_runs_with_long_metrics_is_small(tmp_path):
    """A curve has 400 points and a metric 150, of three to five numbers with five digits each."""
    noise = np.random.default_rng(0).normal(size=(800, 5)).tolist()
    lines = [line(1000 * i, x, loss=y[0], entropy=y[1], q=y[2], grad_norm=y[3]) for i, (x, *y) in enumerate(noise)]
    page = report([make_run(tmp_path / f"run-{i}", lines) for i in range(20)], tmp_path / "x.html").html
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    figures, _ = content(page)
    points = [len(trace["y"]) for f in figures.values() for trace in f["data"] if trace.get("mode") == "lines"]
    assert sorted(points) == [150] * 80 + [400] * 20
    assert len(data) < 20 * (400 * 3 + 4 * 150 * 5) * 10


def drawn(path, folder):
    """The page after a browser has drawn all of it."""
    page = browse(path.as_uri(), folder)
    assert len(re.findall(r'class="plot js-plotly-plot"', page)) == len(content(path.read_text())[0]) > 0
    return page


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_draws_the_pages_without_an_error(tmp_path):
    lines = [line(10, [1.0, 2.0], loss=[1.0, None]), line(20, [2.0, 4.0], loss=[None, None])]
    runs = [make_run(tmp_path / name, lines) for name in ("a", "b")]
    runs += [make_run(tmp_path / "empty", []), make_run(tmp_path / "nan", [line(10, None, loss=None)])]
    page = drawn(report(runs, tmp_path / "x.html").path, tmp_path / "profile")
    assert {"a (2 seeds)", "b (2 seeds)"} <= set(re.findall(r'class="legendtext[^>]*>([^<]*)', page))
    assert "environment steps" in re.findall(r'class="xtitle[^>]*>([^<]*)', page)
    assert {"return of training episodes"} <= set(re.findall(r'class="ytitle[^>]*>([^<]*)', page))
    page = drawn(report(make_sweep(tmp_path / "sweep")).path, tmp_path / "profile")
    assert {"learning_rate", "activation"} <= set(re.findall(r'class="xtitle[^>]*>([^<]*)', page))


DRAWN = """
new Promise(done => (function look() {
  const missing = [...document.querySelectorAll(".plot:not(.js-plotly-plot)")];
  missing.some(plot => plot.getBoundingClientRect().top < innerHeight) ? setTimeout(look, 20) : done();
})())
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A tab, and a function that opens a report in it to the end of the drawing of what is in view."""
    pytest.importorskip("tornado")
    with tab(tmp_path_factory.mktemp("browser")) as page:

        def show(*runs, path):
            page.open(report(runs, path).path.as_uri())
            page.evaluate(DRAWN)

        yield page, show


FIRST = 'document.querySelector(".plot")'
# The title and the ends of the horizontal axis, and the first and the last place of each line.
SHOWN = f"""
(plot => [plot.querySelector(".xtitle").textContent, plot.layout.xaxis.range,
  plot.data.filter(line => line.name).map(line => [line.name, line.x[0], line.x.at(-1)])])({FIRST})
"""


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_reader_chooses_the_axis_a_range_and_the_runs(opened, tmp_path):
    page, show = opened
    lines = [line(10, [1.0, 2.0]), line(20, [2.0, 4.0]), line(30, [2.0, 4.0])]
    runs = [make_run(tmp_path / name, lines) for name in ("a", "b")]
    page.view(DESKTOP)
    show(*runs, path=tmp_path / "x.html")
    both = [["a (2 seeds)", 10, 30], ["b (2 seeds)", 10, 30]]
    assert page.evaluate(SHOWN) == ["environment steps", [10, 30], both]

    page.evaluate(f"{FIRST}.scrollIntoView()")
    box = page.evaluate(f'{FIRST}.querySelector(".nsewdrag").getBoundingClientRect().toJSON()')
    for kind, share in (("Pressed", 0.25), ("Moved", 0.5), ("Moved", 0.75), ("Released", 0.75)):
        place = {"x": box["x"] + share * box["width"], "y": box["y"] + share * box["height"]}
        page.call("Input.dispatchMouseEvent", type=f"mouse{kind}", button="left", buttons=1, clickCount=1, **place)
    assert page.evaluate(SHOWN) == ["environment steps", [pytest.approx(15, abs=0.1), pytest.approx(25, abs=0.1)], both]

    page.evaluate('document.querySelector("[name=axis][value=time]").click()')
    in_time = [[name, first / 10, last / 10] for name, first, last in both]
    assert page.evaluate(SHOWN) == ["seconds of training", [1, 3], in_time], "another axis is not zoomed"
    page.evaluate('document.querySelector(".run").click()')
    assert page.evaluate(SHOWN) == ["seconds of training", [1, 3], in_time[1:]]
    page.evaluate('document.querySelector("[name=axis][value=steps]").click()')
    assert page.evaluate(SHOWN) == ["environment steps", [10, 30], both[1:]]
    assert page.errors == []

    page.view(PHONE)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    show(*runs, path=tmp_path / "x.html")
    assert page.evaluate(f"{FIRST}._fullLayout.dragmode") is False, "a finger scrolls"
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("lines", "note"), [([], "no metric line"), ([line(10, None, loss=None)], "no metric line has a return")]
)
def test_a_run_without_numbers_alone_in_a_browser(opened, tmp_path, lines, note):
    page, show = opened
    show(make_run(tmp_path / "run", lines), path=tmp_path / "x.html")
    assert page.evaluate('document.querySelector(".notes").innerText').startswith(f"run: {note}")
    assert page.evaluate('[...document.querySelectorAll("h2")].map(x => x.innerText)')[0] == "Summary"
    assert page.errors == []

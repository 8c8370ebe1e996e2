"""The documentation site builds without a warning, has every public name, its links resolve, and a browser shows it."""

import html
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from browser import CHROMIUM, DESKTOP, PHONE, Tab, serve, tab

from rlkit import agents, runs

pytest.importorskip("furo")
pytest.importorskip("myst_nb")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not (ROOT / "docs/conf.py").exists(), reason="a source distribution has no docs/"),
]


class Page(HTMLParser):
    """The anchors of a page, its links, and those of them that a browser loads with it."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.add(attributes.get("id"))
        links = [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.links += links
        self.loaded += links if tag != "a" else []


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    """The pages of a build, made from a copy of the repository's pages, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("docs")
    ignored = shutil.ignore_patterns("_build", "algorithms", "api", "benchmarks", "notebooks", "project")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=ignored)
    for entry in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks", "configs", "notebooks"):
        (folder / entry).symlink_to(ROOT / entry)
    built = folder / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", folder / "docs", built]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert process.returncode == 0, process.stderr
    return {path: Page(path) for path in built.rglob("*.html")}


def anchors_of(module: ModuleType, listing: Callable[[ModuleType], list[str]]) -> list[str]:
    """The anchors that the API needs for a module: its own, and those of all public names, also in its submodules."""
    found = [f"module-{module.__name__}"]
    for name in listing(module):
        value = getattr(module, name)
        found += anchors_of(value, listing) if isinstance(value, ModuleType) else [f"{module.__name__}.{name}"]
    return found


def test_every_public_name_has_an_anchor(site, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    api = importlib.import_module("api")
    modules = ["rlkit", *(f"{package}.{name}" for package, names in api.PACKAGES.items() for name in ("", *names))]
    modules = [importlib.import_module(name.rstrip(".")) for name in modules if not name.startswith("rlkit.agents.")]
    needed = {anchor for module in modules for anchor in anchors_of(module, api.public_names)}
    some = {"rlkit.load", "rlkit.ops.returns.gae", "rlkit.envs.wrappers.Flatten", "rlkit.replay.slice_index.init"}
    some |= {f"rlkit.replay.segment_tree.{name}" for name in ("SegmentTree", "build", "total")}
    assert some | {f"rlkit.runs.{name}" for name in runs._NAMES} <= needed
    anchors = set().union(*(page.ids for page in site.values()))
    assert needed - anchors == set()
    for agent in agents.names():
        parts = [part for part in ("Config", "Hyper", "loss", "make") if hasattr(agents.get(agent), part)]
        assert {f"rlkit.agents.{agent}.{part}" for part in parts} <= anchors


def test_a_host_of_static_pages_gets_all_files(site):
    assert (root(site) / ".nojekyll").exists()  # without it, GitHub leaves out the folder _static


def algorithm_pages(site: dict[Path, Page]) -> dict[str, str]:
    """The HTML of the algorithms' pages, by their names."""
    return {path.stem: path.read_text() for path in site if path.parent.name == "algorithms"}


def plain(text: str) -> str:
    """The text of a piece of HTML, in one line."""
    return " ".join(html.unescape(re.sub("<[^>]+>", "", text)).split())


def test_every_algorithm_page_explains_the_algorithm(site):
    pages = algorithm_pages(site)
    for agent in agents.names():
        introduction = pages[agent].partition('<section id="fits">')[0]
        assert "highlight-text" in introduction, f"{agent} has no formula"
        assert "Departures from the paper" in plain(introduction), agent
        loss, results = (
            "".join(re.findall(rf'<section id="{name}">(.*?)</section>', pages[agent], re.DOTALL))
            for name in ("loss", "results")
        )
        assert re.search(r"def \w*loss\(", plain(loss)), f"{agent} has no loss"
        scripts = re.findall(r"python (benchmarks/\S+\.py)", plain(results))
        assert scripts, f"{agent} has no results with the command that makes them"
        assert all((ROOT / script).exists() for script in scripts)


RANGES = {  # of a few keys, by hand: agent and key -> default and range
    ("ppo", "clip_eps"): ("0.2", "> 0"),
    ("ppo", "gae_lambda"): ("0.95", ">= 0, <= 1"),
    ("dqn", "n_step"): ("1", ">= 1, <= 2147483647"),
    ("c51", "v_min"): ("-10.0", ">= -1000000000000, <= 1000000000000"),
    ("iql", "expectile"): ("0.7", "> 0, < 1"),
    ("sac", "target_entropy_total"): ("null", "> -inf, < inf"),
}


def test_every_algorithm_has_a_page_with_its_keys(site):
    pages = algorithm_pages(site)
    assert set(agents.names()) | {"index", "run-keys"} == set(pages)
    found = {}
    for agent in agents.names():
        rows = re.findall("<tr.*?</tr>", pages[agent], re.DOTALL)
        cells = [[plain(cell) for cell in re.findall("<td>(.*?)</td>", row, re.DOTALL)] for row in rows]
        keys = {key: described for key, *described in filter(None, cells)}
        assert set(agents.get(agent).Config.model_fields) <= set(keys)
        for key, value in vars(agents.get(agent).Hyper()).items():
            default = keys[key][1]
            assert (None if default == "null" else float(default)) == value, (agent, key)
        found |= {(of, key): tuple(keys[key][1:3]) for of, key in RANGES if of == agent}
    assert found == RANGES


def test_internal_links_resolve(site):
    broken, checked = [], 0
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            if not target.exists() or (fragment and target in site and fragment not in site[target].ids):
                broken.append((path.name, link))
    assert checked > 1000
    assert broken == []


def test_pages_load_nothing_from_a_network(site):
    loaded = [link for page in site.values() for link in page.loaded]
    assert len(loaded) > 100
    assert [link for link in loaded if urlsplit(link).netloc] == []


def test_matrix_is_that_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    supported = importlib.import_module("algorithms").supported
    rows = {name: {key for key, value in supported(agents.get(name)).items() if value} for name in agents.names()}
    off_policy = {"replay", "prioritized", "offline", "own networks"}
    kinds = {"Discrete", "MultiDiscrete", "bounded Box", "unbounded Box", "Dict, Tuple"}
    assert rows["ppo"] == kinds | {"recurrent", "own networks"}
    assert rows["sac"] == {"Discrete", "bounded Box", "recurrent"} | off_policy
    assert rows["tqc"] == {"bounded Box", "recurrent"} | off_policy
    assert rows["crossq"] == rows["ddpg"]
    assert rows["ddpg"] == {"bounded Box"} | off_policy
    assert rows["pqn"] == {"Discrete", "recurrent", "own networks"}
    assert "recurrent" in rows["r2d2"]


@pytest.fixture(scope="module")
def shown(site, tmp_path_factory) -> Iterator[tuple[str, Tab]]:
    """The address of the site, served on this machine, and a browser's tab."""
    pytest.importorskip("tornado")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with serve(root(site)) as address, tab(tmp_path_factory.mktemp("browser")) as opened:
        yield address, opened


def root(site: dict[Path, Page]) -> Path:
    return min(site, key=lambda path: len(path.parts)).parent


CONTRAST = """
(() => {
  const light = color => color.match(/[\\d.]+/g).slice(0, 3).map(Number)
    .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const text = document.querySelector("article p, article h1") || document.body;
  const pair = [getComputedStyle(text).color, getComputedStyle(document.body).backgroundColor].map(light);
  return [(Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05), pair[1]];
})()
"""
# Elements of the text that are wider than the window, and that nothing above them scrolls.
TOO_WIDE = """
[...document.querySelectorAll("article *")].filter(e => {
  if (e.getBoundingClientRect().right <= document.documentElement.clientWidth + 1) return false;
  for (let up = e.parentElement; up && up.tagName !== "ARTICLE"; up = up.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return false;
  return true;
}).slice(0, 3).map(e => e.outerHTML.slice(0, 120))
"""


def faults(address: str, tab: Tab, page: str) -> list[str]:
    """Errors of a page's console, what is too wide for a phone, and text that cannot be read in the dark."""
    found = []
    tab.view(PHONE)
    tab.open(f"{address}/{page}")
    if (width := tab.evaluate("document.documentElement.scrollWidth")) > PHONE[0]:
        found.append(f"{page} is {width} pixels wide on a phone")
    found += [f"{page}: too wide on a phone: {element}" for element in tab.evaluate(TOO_WIDE)]
    for size, dark in ((PHONE, True), (DESKTOP, True), (DESKTOP, False)):
        tab.view(size, dark=dark)
        contrast, background = tab.evaluate(CONTRAST)
        if contrast < 7 or (background < 0.2) != dark:
            found.append(f"{page}: contrast {contrast:.1f} on a background of {background:.2f}, dark: {dark}")
    return found + [f"{page}: {error}" for error in tab.errors]


SAMPLE = ("index", "first-steps", "metrics", "figures", "algorithms/ppo", "algorithms/index", "api/replay", "api/runs")
SAMPLE += ("moving/torchrl", "notebooks/02_replay", "benchmarks/README", "your-own-algorithm", "project/CHANGELOG")


def test_a_browser_shows_pages_without_errors_on_a_phone_and_in_the_dark(site, shown):
    assert {root(site) / f"{name}.html" for name in SAMPLE} <= set(site)
    assert [fault for name in SAMPLE for fault in faults(*shown, f"{name}.html")] == []


@pytest.mark.slow
def test_a_browser_shows_all_pages(site, shown):
    names = sorted(path.relative_to(root(site)).as_posix() for path in site)
    assert [fault for name in names for fault in faults(*shown, name)] == []


def test_faults_of_a_page_are_found(shown, tmp_path):
    wide = "<article><p style='color: #777; width: 900px'>wide</p></article><script>undefined_name</script>"
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><meta name=viewport content='width=device-width'>{wide}")
    with serve(tmp_path) as address:
        found = " ".join(faults(address, shown[1], "page.html"))
    for part in ("pixels wide", "too wide", "contrast", "undefined_name"):
        assert part in found


def test_the_search_finds_a_module(shown):
    address, tab = shown
    tab.open(f"{address}/search.html?q=segment_tree")
    links = """new Promise(resolve => setInterval(() => {
      const links = [...document.querySelectorAll("#search-results li a")].map(a => a.getAttribute("href"));
      if (links.length) resolve(links);
    }, 50))"""
    assert any("api/replay.html" in link for link in tab.evaluate(links))
    assert tab.errors == []

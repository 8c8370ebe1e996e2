"""The documentation site builds without a warning, has every public name, and its internal links resolve."""

import importlib
import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import rlkit
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


def public_names() -> list[str]:
    """The full names of everything in the `__all__` of the packages, and of what each agent has."""
    names = []
    for package in ("rlkit", *(f"rlkit.{name}" for name in rlkit.__all__), "rlkit.hosts", "rlkit.runs.datasets"):
        try:
            module = importlib.import_module(package)
        except ModuleNotFoundError:  # a function or class of rlkit itself
            continue
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            names.append(f"module-{value.__name__}" if isinstance(value, ModuleType) else f"{package}.{name}")
    return names


def test_every_public_name_has_an_anchor(site):
    anchors = set().union(*(page.ids for page in site.values()))
    names = public_names()
    assert len(names) > 60
    assert {"rlkit.load", "module-rlkit.ops.returns"} | {f"rlkit.runs.{name}" for name in runs._NAMES} <= set(names)
    assert set(names) - anchors == set()
    for agent in agents.names():
        parts = [part for part in ("Config", "Hyper", "loss", "make") if hasattr(agents.get(agent), part)]
        assert {f"rlkit.agents.{agent}.{part}" for part in parts} <= anchors


def test_every_algorithm_has_a_page_with_its_keys(site):
    pages = {path.stem: path.read_text() for path in site if path.parent.name == "algorithms"}
    assert set(agents.names()) | {"index", "run-keys"} == set(pages)
    for agent in agents.names():
        for key in agents.get(agent).Config.model_fields:
            assert f'<span class="pre">{key}</span>' in pages[agent]


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
    assert rows["ppo"] == {"Discrete", "MultiDiscrete", "bounded Box", "unbounded Box", "recurrent", "own networks"}
    assert rows["sac"] == {"Discrete", "bounded Box"} | off_policy
    assert rows["ddpg"] == {"bounded Box"} | off_policy
    assert rows["pqn"] == {"Discrete", "own networks"}
    assert "recurrent" in rows["r2d2"]

"""Hand-made runs for reports, and the content of their pages."""

import json
import re
import subprocess
from html.parser import HTMLParser
from shutil import which

CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")


def make_run(path, lines, *, evaluation=None, config="", versions=None):
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text(f"agent: ppo\nenv: CartPole-v1\ntotal_steps: 20\n{config}")
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "versions.json").write_text(json.dumps(versions or {"jax": "1.0"}))
    if evaluation is not None:
        (path / "eval.json").write_text(json.dumps(evaluation))
    return path


def line(step, returns, **more):
    return {"step": step, "seconds": step / 10, "return_mean": returns, **more}


class Tags(HTMLParser):
    """The tags and the text of a page, without those of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.opened = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.opened = tag
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.opened not in ("script", "style"):
            self.text.append(data)


def content(page):
    """The figures of a page by their titles, and the names of its runs."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    titles = [attributes["aria-label"] for _, attributes in Tags(page).tags if "data-figure" in attributes]
    return dict(zip(titles, data["figures"], strict=True)), data["runs"]


def check(figure):
    """Raise ValueError where Plotly knows no such property, or not such a value of it."""
    from plotly.graph_objects import Figure

    Figure(**_resolved(figure))


def _resolved(value):
    if isinstance(value, dict) and value.keys() == {"steps", "time"}:
        return value["steps"]
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items() if key != "band"}
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    return "#123456" if isinstance(value, str) and value.startswith("@") else value


def browse(address, profile):
    """The document of an address after a browser has run its scripts; an error in its console fails the test."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--dump-dom"]
    flags += ["--disable-background-networking", f"--user-data-dir={profile}", "--enable-logging=stderr"]
    flags += ["--virtual-time-budget=10000", "--window-size=1200,12000"]
    shown = subprocess.run([CHROMIUM, *flags, address], capture_output=True, text=True, timeout=120, check=True)
    assert [text for text in shown.stderr.splitlines() if "CONSOLE" in text and "GL Driver Message" not in text] == []
    return shown.stdout

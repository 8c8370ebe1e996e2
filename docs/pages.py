"""Sphinx extension: write the pages that are made from the code, and copy those outside of docs/, before a build.

The pages are in folders that git ignores: `algorithms`, `api`, `notebooks`, `benchmarks`, `configs` and `project`.
"""

import posixpath
import re
import shutil
from pathlib import Path

import algorithms
import api
import environments
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
_WRITTEN = ("algorithms", "api", "notebooks", "benchmarks", "configs", "project")  # folders that a build fills
_PAGES = {  # whose source is a file or a folder elsewhere
    "README.md": "index.md",
    "rlkit/agents": "algorithms/index.rst",
    "rlkit/runs/config/settings.py": "algorithms/run-keys.rst",
}
_SHOWN = {"benchmarks": (".md", ".png", ".json"), "notebooks": (".ipynb",), "configs": (".yaml",)}
_PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_FIRST_SCREEN = "<!-- the README's first screen -->"
_NOTE = re.compile(r"The tables are filled where the\s\[site\]\(\S+\) is built\.\s")  # which the site is


def site_path(path: str) -> str | None:
    """Return the path on the site, below docs/, of a file's path in the repository; None for files that it lacks."""
    if path in _PAGES:
        return _PAGES[path]
    if match := re.fullmatch(r"rlkit/agents/([a-z]\w*)\.py", path):
        return f"algorithms/{match[1]}.rst"
    if path in _PROJECT:
        return "project/" + path
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = any(path.startswith(f"{folder}/") and path.endswith(kinds) for folder, kinds in _SHOWN.items())
    return path if shown else None


def relink(text: str, path: str) -> str:
    """Return the Markdown of a file with links that hold on the site; links to files that it lacks become code.

    Args:
      text: the Markdown, whose links hold in the repository.
      path: the file, from the root of the repository.
    """
    page = site_path(path)
    assert page is not None

    def replace(match: re.Match[str]) -> str:
        image, label, link, anchor = match[1], match[2], match[3], match[4] or ""
        target = site_path(posixpath.normpath(posixpath.join(posixpath.dirname(path), link)))
        if target is None:
            return label if label.startswith("`") else f"`{label}`"
        return f"{image}[{label}]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{anchor})"

    return _LINK.sub(replace, text)


def write(app: Sphinx) -> None:
    """Write all pages that are not in docs/ itself."""
    source = Path(app.srcdir)
    for folder in _WRITTEN:
        shutil.rmtree(source / folder, ignore_errors=True)
    pages = {f"algorithms/{name}.rst": text for name, text in algorithms.pages().items()}
    pages |= {f"api/{name}.rst": text for name, text in api.pages().items()}
    for pattern in (*_PROJECT, "benchmarks/**/*.md", "notebooks/*.ipynb"):
        for file in ROOT.glob(pattern):
            path = file.relative_to(ROOT).as_posix()
            pages[site_path(path) or ""] = relink(file.read_text(), path)
    pages["benchmarks/README.md"] += "\n```{toctree}\n:glob:\n:hidden:\n\n*/*\n```\n"
    for path, text in pages.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    for pattern in ("benchmarks/**/*.png", "benchmarks/**/*.json", "configs/**/*.yaml"):
        for file in ROOT.glob(pattern):
            copy = source / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def _complete_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill in the tables of the pages in docs/ itself, and change links and notes that are for the repository."""
    if name == "index":
        first_screen = (ROOT / "README.md").read_text().partition("<img")[0]
        source[0] = source[0].replace(_FIRST_SCREEN, relink(first_screen, "README.md"))
    elif name.split("/")[0] not in _WRITTEN:
        source[0] = relink(environments.fill(_NOTE.sub("", source[0])), f"docs/{name}.md")


def setup(app: Sphinx) -> dict[str, bool]:
    """Write the pages when a build begins."""
    app.connect("builder-inited", write)
    app.connect("source-read", _complete_source)
    return {"parallel_read_safe": True}

"""The HTML of a report. All text from files is escaped, and a Content-Security-Policy forbids requests to a network."""

import base64
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from rlkit.runs.reports.figures import Figure
from rlkit.runs.versions import require

_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data:"
)


class Page:
    """HTML in parts, and the figures that its places stand for."""

    def __init__(self, title: str, runs: Sequence[str]) -> None:
        self.title, self.runs = title, list(runs)  # the heading, and the names behind the colors
        self.notes: list[str] = []  # what is left out
        self.figures: list[dict[str, Any]] = []
        self.sections: list[tuple[str, str]] = []  # title and HTML of each

    def add(self, title: str, body: str) -> None:
        """Add a section, unless it is empty."""
        if body:
            self.sections.append((title, body))

    def figure(self, figure: Figure, heading: str = "h3") -> str:
        """Return the HTML of a figure, which is drawn when it comes into view."""
        self.figures.append(figure.spec)
        caption = f"<p>{html.escape(figure.caption)}</p>" if figure.caption else ""
        title = html.escape(figure.title)
        return (
            f'<figure><{heading}>{title}</{heading}>{caption}<div class="plot" role="img" aria-label="{title}" '
            f'data-figure="{len(self.figures) - 1}" style="height:{figure.height}px"></div></figure>'
        )

    @property
    def body(self) -> str:
        """The HTML of the sections."""
        return "".join(
            f'<section id="s{index}"><h2>{html.escape(title)}</h2>{body}</section>'
            for index, (title, body) in enumerate(self.sections)
        )

    def data(self, **more: Any) -> str:
        """Return the figures, the names of the runs and further values as JSON that ends no script element."""
        value = {"figures": self.figures, "runs": self.runs, **more}
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def render(self, refresh: str = "") -> str:
        """Return the whole page.

        Args:
          refresh: an address on the page's own server, from which the page reads newer figures; "" for a page that
            stays as it is and needs no network.

        Raises:
          ConfigError: plotly is not installed.
        """
        titles = (html.escape(title) for title, _ in self.sections)
        contents = "".join(f'<li><a href="#s{index}">{title}</a></li>' for index, title in enumerate(titles))
        noted = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return _TEMPLATE.format(
            policy=_SECURITY_POLICY + ("; connect-src 'self'" if refresh else ""),
            title=html.escape(self.title),
            style=_asset("page.css"),
            contents=f'<nav aria-label="contents"><ol>{contents}</ol></nav>' if len(self.sections) > 2 else "",
            notes=f'<ul class="notes">{noted}</ul>' if noted else "",
            status='<p role="status" id="status"></p>' if refresh else "",
            toolbar=_toolbar(self.runs),
            body=self.body,
            data=self.data(**({"refresh": refresh} if refresh else {})),
            plotly=plotly() if self.figures else "",
            script=_asset("page.js"),
        )


_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1>{status}{notes}{contents}</header>
{toolbar}
<main>
{body}
</main>
<script type="application/json" id="data">{data}</script>
<script>{plotly}</script>
<script>
{script}</script>
</body>
</html>
"""


def _toolbar(runs: Sequence[str]) -> str:
    """The choice of the horizontal axis, and a button for each run: its color, shown or hidden."""
    if not runs:
        return ""
    buttons = "".join(
        f'<button type="button" class="run" data-run="{index}" aria-pressed="true"><svg width="22" height="8" '
        f'aria-hidden="true"><line x1="0" x2="22" y1="4" y2="4"></line></svg>{html.escape(name)}</button>'
        for index, name in enumerate(runs)
    )
    return (
        '<div class="toolbar"><fieldset><legend>Curves against</legend>'
        '<label><input type="radio" name="axis" value="steps" checked>steps</label>'
        '<label><input type="radio" name="axis" value="time">time</label></fieldset>'
        f'<div class="runs" role="group" aria-label="runs shown">{buttons}</div></div>'
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], marked: Iterable[str] = ()) -> str:
    """Return the HTML of a table whose rows begin with their headings; those of `marked` rows are emphasized."""
    marks = set(marked)
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join(
        f'<tr{" class=differs" if row[0] in marks else ""}><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def picture(media: str, data: bytes, name: str) -> str:
    """Return the HTML of a GIF, a drawing or a video with its caption."""
    source = f"data:{media};base64,{base64.b64encode(data).decode()}"
    label = html.escape(name)
    shown = (
        f'<video src="{source}" controls loop muted aria-label="{label}"></video>'
        if media.startswith("video/")
        else f'<img src="{source}" alt="An episode of {label}">'
    )
    return f'<figure class="picture">{shown}<figcaption>{label}</figcaption></figure>'


def _asset(name: str) -> str:
    return (resources.files("rlkit.runs.reports") / name).read_text()


def plotly() -> str:
    """Return the JavaScript of Plotly. Raises ConfigError where it is not installed."""
    return require("plotly.offline", "a report", "report").get_plotlyjs()

"""A server of the report of one run, on this machine alone, for a page that follows the training."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from rlkit.runs import run_directory
from rlkit.runs.reports.page import Page, plotly
from rlkit.runs.reports.reading import read_runs
from rlkit.runs.reports.report import compose
from rlkit.types import ConfigError

ADDRESS = "127.0.0.1"
DATA = "/figures.json"
_READ = (run_directory.METRICS, run_directory.EVALUATION, run_directory.CONFIG)
_ENDED = ("finished", "stopped")


class Server(ThreadingHTTPServer):
    """A server of the page of a run and of its newer figures, and of no files."""

    daemon_threads = True

    def __init__(self, run: Path, port: int = 0):
        """Listen on the loopback address, without answering yet: `serve_forever` does.

        Args:
          run: a run directory.
          port: of the server; 0 for a free one.

        Raises:
          ConfigError: plotly is not installed, there is no such run, or the port is not free.
        """
        plotly()
        self.run, self._lock = run_directory.existing(run), Lock()
        self._composed: tuple[Any, Page, str] | None = None  # the files' times, the page of then and the run's state
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "it is not from 0 to 65535"
            raise ConfigError(f"port={port} must be a free port: {reason}; leave it out for a free one") from None
        names = [ADDRESS, "localhost"]  # in the header Host
        self.hosts = {f"{name}:{self.server_port}" for name in names}
        if self.server_port == 80:
            self.hosts |= {*names}

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def compose(self) -> tuple[Page, str]:
        """Return the page of the run and the run's state. It is made anew where a file of the run has changed."""
        with self._lock:
            stamp = [_stamp(self.run / name) for name in _READ], run_directory.is_locked(self.run)
            if self._composed is None or self._composed[0] != stamp:
                runs = read_runs([self.run])
                self._composed = stamp, compose(runs), runs[0].overview.state
            return self._composed[1:]


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """Answer with the page or its newer figures.

        Requests for another host are refused, as in DNS rebinding, where the name of someone else's web page resolves
        to the loopback address.
        """
        if self.headers.get("Host") not in self.server.hosts:
            return self.send_error(HTTPStatus.FORBIDDEN)
        if self.path not in ("/", DATA):
            return self.send_error(HTTPStatus.NOT_FOUND)
        try:
            page, state = self.server.compose()
        except ConfigError:  # the run was deleted
            return self.send_error(HTTPStatus.GONE)
        if self.path == "/":
            self._answer("text/html", page.render(DATA))
        else:
            self._answer("application/json", page.data(body=page.body, state=state, ended=state in _ENDED))

    def _answer(self, media: str, text: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{media}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for an answer."""


def _stamp(path: Path) -> tuple[int, int] | None:
    """The time and the size of a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size

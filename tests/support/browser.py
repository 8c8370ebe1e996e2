"""A headless Chromium, driven over its debugging protocol, and pages served to it on this machine alone."""

import asyncio
import base64
import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for path in map(shutil.which, _NAMES) if path), None)
PHONE, DESKTOP = (390, 844), (1280, 900)
_SECONDS = 30.0  # that an answer may take


class _Files(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/favicon.ico":
            return super().do_GET()
        self.send_response(204)  # the site has no icon, for which every browser asks
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder; the address of its root, without a slash."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Tab:
    """One page of a browser. `errors` are those that its console has shown since the last `open`."""

    def __init__(self, socket: Any, loop: asyncio.AbstractEventLoop):
        self._socket, self._loop, self._id = socket, loop, 0
        self.errors: list[str] = []
        self._loaded: set[str] = set()  # ids of loaders that have ended
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._id += 1
        self._loop.run_until_complete(self._send(json.dumps({"id": self._id, "method": method, "params": params})))
        while True:
            message = self._next()
            if message.get("id") == self._id:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, address: str) -> None:
        """Open an address, to the end of its loading."""
        self.errors = []
        loader = self.call("Page.navigate", url=address)["loaderId"]
        while loader not in self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, what it resolves to."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def view(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Set the width and the height of the window, and the preferred color scheme."""
        width, height = size
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    async def _send(self, text: str) -> None:
        await self._socket.write_message(text)

    async def _receive(self) -> Any:
        return await self._socket.read_message()

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted."""
        text = self._loop.run_until_complete(asyncio.wait_for(self._receive(), _SECONDS))
        assert text is not None, "the browser has closed the connection"
        message = json.loads(text)
        method, params = message.get("method"), message.get("params", {})
        if method == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return message


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A tab of a new browser, whose profile is in an empty folder."""
    from tornado.httpclient import AsyncHTTPClient
    from tornado.websocket import websocket_connect

    assert CHROMIUM is not None
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    command = [CHROMIUM, *options, *quiet, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    loop = asyncio.new_event_loop()

    async def connect() -> Any:
        port_file = folder / "DevToolsActivePort"
        while not port_file.exists() or not port_file.read_text().strip():
            assert process.poll() is None, "the browser has ended"
            await asyncio.sleep(0.05)
        port = port_file.read_text().split()[0]
        targets = json.loads((await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json")).body)
        page = next(target for target in targets if target["type"] == "page")
        return await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 28)

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            socket = loop.run_until_complete(asyncio.wait_for(connect(), _SECONDS))
            yield Tab(socket, loop)
            socket.close()
        finally:
            process.kill()
            process.wait()
            loop.close()

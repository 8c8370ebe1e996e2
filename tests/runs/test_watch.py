"""The page of a run that is being trained, over HTTP."""

import fcntl
import http.client
import json
import re
import threading
from contextlib import contextmanager
from socket import MSG_PEEK

import pytest
from report_pages import CHROMIUM, Tags, browse, content, line, make_run

from rlkit.cli import main
from rlkit.runs.reports.watching import Server
from rlkit.types import ConfigError

pytest.importorskip("plotly")


@contextmanager
def served(run, kind=Server):
    with kind(run) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def training(run):
    """A lock as the process has that trains the run."""
    with (run / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    (run / ".lock").unlink()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def append(run, *lines):
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in lines)


def test_the_figures_follow_the_metric_lines(tmp_path):
    run = make_run(tmp_path / "run", [line(5, 1.0, loss=4.0)])
    with served(run) as server:
        with training(run):
            answer, page = get(server, "/")
            assert answer.status == 200
            figures, _ = content(page)
            names = list(figures)
            index = names.index("Return on CartPole-v1")
            assert figures["Return on CartPole-v1"]["data"][0]["y"] == [1.0]
            append(run, line(10, 3.0, loss=2.0))
            newer = json.loads(get(server, "/figures.json")[1])
            assert newer["figures"][index]["data"][0]["y"] == [1.0, 3.0]
            assert newer["figures"][names.index("loss")]["data"][0]["y"] == [4.0, 2.0]
            assert (newer["state"], newer["ended"]) == ("training", False)
            with (run / "metrics.jsonl").open("a") as file:
                file.write('{"step": 15, "return_me')  # a line that is being written
            assert json.loads(get(server, "/figures.json")[1])["figures"][index]["data"][0]["y"] == [1.0, 3.0]
            with (run / "metrics.jsonl").open("a") as file:
                file.write('an": 5.0}\n')
        append(run, line(20, 7.0))
        newer = json.loads(get(server, "/figures.json")[1])
        assert newer["figures"][index]["data"][0]["y"] == [1.0, 3.0, 5.0, 7.0]
        assert (newer["state"], newer["ended"]) == ("finished", True)


def test_only_this_machine_is_answered_and_no_file_is_served(tmp_path):
    run = make_run(tmp_path / "run", [line(10, 1.0)])
    with served(run) as server:
        assert server.server_address[0] == "127.0.0.1"
        port = server.server_port
        for path in ("/", "/figures.json"):
            assert get(server, path, f"localhost:{port}")[0].status == 200
            for host in (
                "example.com",
                f"example.com:{port}",
                f"127.0.0.1.example.com:{port}",
                f"127.0.0.1:{port + 1}",
            ):
                answer, text = get(server, path, host)
                assert answer.status == 403
                assert "CartPole" not in text
        for path in ("/metrics.jsonl", "/config.yaml", "/../run/config.yaml", "/?x", "/report.html"):
            assert get(server, path)[0].status == 404
        assert get(server, "/", method="POST")[0].status == 501
        answer, page = get(server, "/")
        assert answer.getheader("Access-Control-Allow-Origin") is None
        policy = next(a["content"] for _, a in Tags(page).tags if a.get("http-equiv") == "Content-Security-Policy")
        assert "connect-src 'self'" in policy


def test_mistakes_are_one_line(tmp_path, capsys):
    run = make_run(tmp_path / "run", [line(10, 1.0)])
    with Server(run) as server:
        with pytest.raises(ConfigError, match=f"port={server.server_port} must be"):
            Server(run, server.server_port)
        assert main(["watch", str(run), "--port", str(server.server_port)]) == 2
    assert main(["watch", str(run), "--port", "70000"]) == 2
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert [text.split("=")[0] for text in capsys.readouterr().err.splitlines()] == [
        "rlkit: port",
        "rlkit: port",
        "rlkit: run",
    ]


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_curve_grows_in_a_browser_until_the_run_has_ended(tmp_path):
    run = make_run(tmp_path / "run", [line(2, 0.0), line(4, 1.0)])
    coming, asked = [line(8, 0.0), line(12, 1.0), line(20, 0.0)], []

    class Growing(Server):
        """Each answer finds a metric line more, and the last one a run that has ended."""

        def finish_request(self, request, client_address):
            asked.append(request.recv(100, MSG_PEEK).split()[1].decode())
            if len(asked) > 1 and coming:
                append(run, coming.pop(0))
                if not coming:
                    lock.close()
            super().finish_request(request, client_address)

    with training(run) as lock, served(run, Growing) as server:
        page = browse(server.address, tmp_path / "profile")
    curve = re.search(r'class="trace scatter.*?class="js-line" d="([^"]*)"', page)
    assert curve is not None
    assert len(re.findall(r"[\d.]+,[\d.]+", curve[1])) == 5
    assert asked == ["/", *["/figures.json"] * 3], "the page is not loaded again"
    assert '<p role="status" id="status">finished</p>' in page
    assert '<th scope="row">state</th><td>finished</td>' in page, "tables follow as well"

"""Metric lines of many updates are made in parts, between which a run can be stopped."""

import signal

import numpy as np
import pytest
from tiny_runs import SMALL, digest, without_clock

from rlkit.runs import loop, metrics
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.parse import parse
from rlkit.runs.programs import jax_program, parts
from rlkit.runs.programs.protocol import Chunk

pytestmark = pytest.mark.usefixtures("compiled_once")

BATCH, LINE = 32, 5  # steps of an update, updates of a metric line
CONFIG = SMALL | {"log_every": LINE * BATCH, "checkpoint_every": 2 * LINE * BATCH}


def asked_in(monkeypatch):
    """The counts that the program is asked for, each with a function that is called before it: none by default."""
    counts, before, advance = [], {}, jax_program.JaxProgram.advance

    def wrapper(self, state, count):
        before.get(len(counts), lambda: None)()
        counts.append(int(count))
        return advance(self, state, count)

    monkeypatch.setattr(jax_program.JaxProgram, "advance", wrapper)
    return counts, before


@pytest.fixture
def asked(monkeypatch):
    return asked_in(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in parts whose lengths follow from the time that they take, none of which is long."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        counts, _ = asked_in(monkeypatch)
        run = loop.train(CONFIG, out=tmp_path_factory.mktemp("parts") / "whole", show=False)
    assert counts == [1, 2, 2, 5]  # that a line ends does not make the next part smaller
    return run


def test_a_part_takes_as_long_as_the_last_one_tells():
    def made(count, seconds):
        part.add(Chunk(None, np.int32(count), np.bool_(True), {"x": np.arange(9)}), seconds)

    part = parts.Parts(1000)
    found = []
    for seconds in (0.0, 0.1, 0.1, *(factor * parts.PART_SECONDS for factor in (1, 1, 2, 100))):
        found.append(int(part.count(1000)))
        made(found[-1], seconds)
    assert found == [1, 2, 4, 8, 8, 8, 4]
    assert part.count(1000) == 1
    assert parts.Parts(1).count(1000) == 1
    assert parts.Parts(None).count(1000) == 1000


def test_parts_are_joined_to_lines():
    part = parts.Parts(1000)
    for count, seconds in ((1, 0.5), (3, 1.0)):
        part.add(Chunk(None, np.int32(count), np.bool_(True), {"x": 10 * count + np.arange(5)}), seconds)
    assert part.pending
    count, line, seconds = part.join()
    assert (count, line["x"].tolist(), seconds) == (4, [10, 30, 31, 32], 1.5)
    assert not part.pending


def test_parts_change_neither_the_state_nor_the_lines(whole, asked, tmp_path, monkeypatch):
    counts, _ = asked
    monkeypatch.setattr(parts, "PART_SECONDS", 0.0)
    single = loop.train(CONFIG, out=tmp_path / "single", show=False)
    assert counts == [1] * 10
    assert digest(single.state) == digest(whole.state)
    assert without_clock(single.run) == without_clock(whole.run)
    assert [line["step"] for line in metrics.read(single.run)] == [LINE * BATCH, 2 * LINE * BATCH]


def test_a_signal_ends_a_line_after_the_part(whole, asked, tmp_path, monkeypatch):
    """The run is saved there, and goes on to the same end."""
    counts, before = asked
    monkeypatch.setattr(parts, "PART_SECONDS", 0.0)
    before[2] = lambda: signal.raise_signal(signal.SIGTERM)
    stopped = loop.train(CONFIG, out=tmp_path / "run", show=False)
    before.clear()
    assert counts == [1] * 3
    assert stopped.signal == signal.SIGTERM
    assert checkpoint.steps(stopped.run)[-1] == 3 * BATCH
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(whole.state)
    lines = metrics.read(resumed.run)
    assert [line["step"] // BATCH for line in lines] == [3, 5, 10]
    assert without_clock(resumed.run)[2] == without_clock(whole.run)[1]
    assert lines[0]["episodes"] + lines[1]["episodes"] == metrics.read(whole.run)[0]["episodes"]


def test_metrics_of_a_long_line_take_a_bounded_space_on_the_device(asked, tmp_path, monkeypatch):
    counts, _ = asked
    program = jax_program.JaxProgram(parse(CONFIG))
    before = program.num_bytes
    monkeypatch.setattr(jax_program, "METRICS_BYTES", 2 * program._metrics_num_bytes + 1)
    assert (program.most_updates, before - program.num_bytes) == (2, 3 * program._metrics_num_bytes)
    loop.train(CONFIG, out=tmp_path / "run", show=False)
    assert counts == [1, 2, 2, 2, 2, 1]
    monkeypatch.setattr(jax_program, "METRICS_BYTES", 1)
    assert program.most_updates == 1

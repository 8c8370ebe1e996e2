"""Runs of a population again, to the byte: trained anew, stopped at an evolution, and with other settings."""

import json
import signal

import numpy as np
import pytest
from tiny_runs import FOUR, digest, shared_compilations, without_clock

from rlkit.runs import loop
from rlkit.runs.population import record
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def _compiled_once(tmp_path_factory):
    with shared_compilations(tmp_path_factory.getbasetemp() / "xla"):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return loop.train(FOUR, out=tmp_path_factory.mktemp("runs") / "first", show=False)


def test_a_resolved_config_trains_again_to_the_byte(trained, tmp_path):
    again = loop.train(trained.run / "config.yaml", out=tmp_path / "again", show=False)
    assert digest(again.state) == digest(trained.state)
    assert (again.run / record.FILE).read_bytes() == (trained.run / record.FILE).read_bytes()
    assert without_clock(again.run) == without_clock(trained.run)


def test_stopping_at_an_evolution_and_resuming_changes_nothing(trained, tmp_path):
    stop = 128

    def interrupt(line, state):
        if line["step"] == stop:
            signal.raise_signal(signal.SIGTERM)

    stopped = loop.train(FOUR, interrupt, out=tmp_path / "run", show=False)
    assert record.read(stopped.run)[-1]["step"] == stop // 64 * 64
    with (stopped.run / record.FILE).open("a") as file:  # what a killed run wrote after its last checkpoint
        entry = json.dumps(record.read(stopped.run)[-1] | {"step": stop + 64})
        file.write(f'{entry}\n{{"step": {stop + 128}, "half')
    resumed = loop.resume(stopped.run, show=False)
    assert digest(resumed.state) == digest(trained.state)
    assert (resumed.run / record.FILE).read_bytes() == (trained.run / record.FILE).read_bytes()
    assert without_clock(resumed.run) == without_clock(trained.run)
    assert resumed.evaluation == trained.evaluation


def test_keys_of_a_population_that_may_change(trained, tmp_path):
    stopped = loop.train(FOUR, lambda line, state: line["step"] == 160, out=tmp_path / "run", show=False)
    with pytest.raises(ConfigError, match=r"^population=5 must stay 4 "):
        loop.resume(stopped.run, overrides={"population": 5}, show=False)
    with pytest.raises(ConfigError, match=r"^gamma=0.5 must not change in a population, .*; change population_ranges"):
        loop.resume(stopped.run, overrides={"gamma": 0.5}, show=False)
    rates = np.asarray(stopped.state.agent.hyper.learning_rate)
    changed = {"total_steps": 384, "evolve_every": 320, "vf_coef": 0.25}
    resumed = loop.resume(stopped.run, overrides=changed, show=False)
    assert record.read(resumed.run)[-1]["step"] == 320
    np.testing.assert_array_equal(resumed.state.agent.hyper.vf_coef, np.full(4, 0.25, np.float32))
    parents = record.read(resumed.run)[-1]["parents"]
    kept = [member for member in range(4) if parents[member] == member]
    np.testing.assert_array_equal(np.asarray(resumed.state.agent.hyper.learning_rate)[kept], rates[kept])

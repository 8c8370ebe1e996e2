"""`rlkit eval --step`, and every key in which the configs of compared runs differ."""

import json
import re

import pytest
from tiny_runs import SMALL, shared_compilations

from rlkit import cli
from rlkit.runs import loop, policy, run_directory
from rlkit.runs.config.parse import parse
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def _compiled_once():
    with shared_compilations():
        yield


def test_the_checkpoint_of_a_step_is_evaluated_and_the_runs_own_scores_stay(tmp_path, capsys):
    trained = loop.train(SMALL | {"total_steps": 96, "checkpoint_every": 32}, out=tmp_path / "run", show=False)
    before = (trained.run / "eval.json").read_bytes()
    assert json.loads(before)["step"] == 96
    capsys.readouterr()
    assert cli.main(["eval", str(trained.run), "--step", "32"]) == 0
    assert capsys.readouterr().out.startswith("step 32: greedy return ")
    assert (trained.run / "eval.json").read_bytes() == before
    assert cli.main(["eval", str(trained.run), "--step", "33"]) == 2
    assert re.fullmatch(r"rlkit: [^\n]*33[^\n]*\n", capsys.readouterr().err)


def test_every_key_that_differs_is_compared(tmp_path, capsys):
    changes = {"learning_rate": 0.02, "seed": 3, "hidden_sizes": [16], "normalize_obs": False}
    for name, change in {"a": {}, "b": changes}.items():
        run = run_directory.create(tmp_path / name)
        (run / run_directory.CONFIG).write_text(parse(SMALL | change).resolved())
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    names = [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert {name for name in names if name.startswith("config: ")} == {f"config: {key}" for key in changes}


def test_a_step_does_not_go_with_best(tmp_path):
    with pytest.raises(ConfigError, match=r"step=1024 does not go with best.*leave out one"):
        policy.load_state(tmp_path, 1024, best=True, overrides={}, own_code={})

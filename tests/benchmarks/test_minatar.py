"""benchmarks/learning/minatar.py: seeds of several machines come together by their numbers."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "learning" / "minatar.py"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution has no benchmarks"),
]


@pytest.fixture
def minatar(monkeypatch):
    """The script as a module; what it imports beside itself is forgotten again."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    spec = importlib.util.spec_from_file_location("minatar", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in {*sys.modules} - before:
        if str(SCRIPT.parents[1]) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def seed(value, number=None):
    """A seed's result, as minatar.json has it; early ones have no number, and are the first."""
    return {"points": [[10, value]]} | ({} if number is None else {"seed": number})


def test_seeds_are_merged_by_number_and_none_is_replaced(minatar, tmp_path):
    results = {"Breakout": {"DQN": [seed(1.0), seed(2.0)]}}
    others = [
        {"Breakout": {"DQN": [seed(1.0), seed(5.0, 4)]}, "Freeway": {"IQN": [seed(7.0, 2)]}},
        {"Breakout": {"DQN": [seed(9.0), seed(9.0), seed(3.0, 2), seed(4.0, 3)]}},
    ]
    for i, other in enumerate(others):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "minatar.json").write_text(json.dumps(other))
    minatar.merge(results, [tmp_path / "0", tmp_path / "1"])
    assert [one["points"][0][1] for one in results["Breakout"]["DQN"]] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert results["Freeway"]["IQN"] == [seed(7.0, 2)]


def test_a_seed_that_is_trained_again_replaces_itself_alone(minatar, tmp_path, monkeypatch):
    made = minatar.report.provenance()
    stored = [seed(value, number) | {"made": made} for number, value in enumerate((1.0, 2.0, 3.0))]
    (tmp_path / "minatar.json").write_text(json.dumps({"Breakout": {"DQN": stored}}))
    monkeypatch.setattr(minatar, "train_rlkit", lambda row, game, steps, seeds: [seed(9.0) for _ in seeds])
    monkeypatch.setattr(minatar, "draw", lambda results, folder: None)
    call = ["minatar.py", "DQN", "--games", "Breakout", "--results", str(tmp_path), "--again", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", [*call, "--first", "1", "--steps", "10"])
    minatar.main()
    trained = json.loads((tmp_path / "minatar.json").read_text())["Breakout"]["DQN"]
    assert [one["points"][0][1] for one in trained] == [1.0, 9.0, 3.0]
    monkeypatch.setattr(sys, "argv", [*call, "--steps", "100"])
    with pytest.raises(SystemExit, match="DQN has seeds of 10 steps on Breakout"):
        minatar.main()

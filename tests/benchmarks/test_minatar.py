"""benchmarks/learning/minatar.py: seeds of several machines come together by their numbers, and make scores."""

import json
import sys

import numpy as np
import pytest
from benchmark_scripts import BENCHMARKS, PROGRAMS, loaded

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PROGRAMS, reason="a source distribution has no benchmarks"),
]


@pytest.fixture
def minatar():
    with loaded("learning/minatar.py") as script:
        yield script


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
    monkeypatch.setattr(minatar.jax.config, "update", lambda *_: None)  # its cache of programs ends with the program
    program = str(BENCHMARKS / "learning" / "minatar.py")
    call = [program, "DQN", "--games", "Breakout", "--results", str(tmp_path), "--again", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", [*call, "--first", "1", "--steps", "10"])
    minatar.main()
    trained = json.loads((tmp_path / "minatar.json").read_text())["Breakout"]["DQN"]
    assert [one["points"][0][1] for one in trained] == [1.0, 9.0, 3.0]
    monkeypatch.setattr(sys, "argv", [*call, "--steps", "100"])
    with pytest.raises(SystemExit, match="DQN has seeds of 10 steps on Breakout"):
        minatar.main()


def test_a_score_is_a_return_over_the_mean_of_ppo_and_waits_for_all_seeds(minatar):
    games = {game: 10.0 * (i + 1) for i, game in enumerate(minatar.GAMES)}  # PPO's mean return on each
    results = {
        game: {
            "PPO": [seed(0.5 * mean), seed(1.5 * mean)],
            "C51": [seed(2.0 * mean), seed(3.0 * mean), seed(9.0 * mean)],
            "SAC": [seed(4.0 * mean)],
        }
        for game, mean in games.items()
    }
    scores = minatar.scores(results)
    assert {*scores} == {"PPO", "C51"}
    np.testing.assert_allclose(scores["C51"], [[2.0] * 4, [3.0] * 4, [9.0] * 4])
    text = minatar.leaderboard(results)
    assert text.index("| C51 | 3 | ") < text.index("| PPO | 2 | 1.00 [")
    assert "SAC" in text.rpartition("without a score over all:")[2]

"""Marks of configs, with at most its steps, one seed and a lower mark than in the learning benchmark."""

import pytest

from rlkit import runs

pytestmark = pytest.mark.thorough

MARKS = {  # config: steps, and the least mean return of 64 greedy episodes
    "pqn/cartpole": (200_000, 400.0),
    "sac/pendulum": (20_000, -250.0),
}


@pytest.mark.parametrize("config", ["pqn/cartpole", pytest.param("sac/pendulum", marks=pytest.mark.slow)])
def test_a_config_learns(config, tmp_path):
    steps, mark = MARKS[config]
    keys = {"total_steps": steps, "eval_episodes": 64}
    trained = runs.train(runs.load_config(config, keys), out=tmp_path / "run", show=False)
    assert trained.evaluation["unfinished"] == 0
    assert trained.evaluation["mean"] >= mark

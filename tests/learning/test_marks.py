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


def test_only_a_bonus_finds_the_end_of_a_chain(tmp_path):
    """Of 20 steps, which random actions take in one of a million episodes; these runs have 4,000."""
    keys = {"env_kwargs": {"length": 20}, "num_steps": 48, "total_steps": 80_000, "eval_episodes": 4, "seed": 1}
    for weight, expected in ((1.0, 0.99), (0.0, 0.0)):
        config = runs.load_config("ppo/chain", keys | {"exploration_bonus": weight})
        trained = runs.train(config, out=tmp_path / str(weight), show=False)
        assert abs(trained.evaluation["mean"] - expected) < 0.005

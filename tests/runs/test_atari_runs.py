"""Runs of Atari games: their networks by default, scores of whole games, and pictures of either kind of environment."""

import pytest
from PIL import Image

from rlkit import cli, runs
from rlkit.runs.overview import read_run

pytest.importorskip("ale_py")
pytestmark = pytest.mark.thorough
CONFIG = {"agent": "ppo", "env": "ale:Breakout", "num_envs": 2, "num_steps": 8, "total_steps": 32, "num_epochs": 1}
CONFIG |= {"num_minibatches": 1, "eval_episodes": 2}
CONFIG |= {"env_kwargs": {"fire_reset": True, "max_num_frames_per_episode": 400, "noop_max": 0}}


def test_a_run_is_evaluated_by_whole_games_and_drawn(tmp_path, capsys):
    run = runs.train(CONFIG, out=tmp_path / "run", show=False).run
    assert read_run(run).evaluation["length_mean"] >= 99  # a game of 400 frames, also where lives are lost in it
    assert cli.main(["check", str(run / "config.yaml")]) == 0
    assert "hidden_sizes=[512], activation='relu', shared_torso=true, by the observations" in capsys.readouterr().out
    with Image.open(runs.render(run, max_steps=8)) as picture:
        assert picture.size == (160, 210)
        assert getattr(picture, "n_frames", 1) == 9

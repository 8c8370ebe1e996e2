"""Runs in environments of several players outside of JAX, through the door of users."""

import json

import host_runs
import jax
import numpy as np
import pytest
from host_runs import lines
from mistakes import mistake
from PIL import Image
from player_envs import Drawn, Meeting, Signal, make

from rlkit import runs
from rlkit.cli import main

pytestmark = pytest.mark.thorough
PPO = host_runs.PPO | {"num_envs": 6, "eval_episodes": 4}
DQN = host_runs.DQN | {"num_envs": 6, "total_steps": 960, "capacity": 510, "learning_starts": 96}


def test_ppo_learns_for_all_players(tmp_path):
    """Each is paid for its own view: 5 in an episode, and 10 for the team. Episodes are of worlds."""
    trained = runs.train(PPO | {"env": make}, out=tmp_path / "run", show=False)
    evaluation, rows = trained.evaluation, lines(trained.run)
    assert [evaluation[name] for name in ("mean", "team_return_mean", "players", "episodes")] == [5, 10, 2, 6]
    assert sum(line["episodes"] for line in rows) == 1920 // 10
    assert rows[-1]["team_return_mean"] == 2 * rows[-1]["return_mean"]
    assert main(["eval", str(trained.run), "--env", "player_envs:make", "--episodes", "5"]) == 0
    again = json.loads((trained.run / "eval.json").read_text())
    assert again["episodes"] == 6  # of three worlds at once
    policy = runs.load(trained.run, env=make)
    shown = {"obs": np.array([0, 1], np.float32), "action_mask": np.ones(2, bool)}
    assert policy.act(shown, jax.random.key(0))[0] == 1


@pytest.mark.parametrize("more", [{}, {"num_steps": 1}, {"num_seeds": 2}], ids=str)
def test_dqn_trains_and_resumes(tmp_path, more):
    """In worlds whose players leave and come, which end after 4 steps."""
    values = DQN | more | {"env": Meeting, "log_every": 480}
    stopped = runs.train(values, lambda line, state: line["step"] >= 480, out=tmp_path / "run", show=False)
    assert lines(stopped.run)[-1]["step"] == 480
    resumed = runs.resume(tmp_path / "run", env=Meeting, show=False)
    rows = lines(resumed.run)
    assert [line["step"] for line in rows] == [480, 960]
    episodes = np.array([line["episodes"] for line in rows])
    # One is not counted, as the steps before the interruption began it.
    assert (abs(episodes.sum(0) - 960 // 12) <= 2).all()
    assert resumed.evaluation["episodes"] == 4 * more.get("num_seeds", 1)
    assert resumed.evaluation["length_mean"] == 4


def test_datasets(tmp_path):
    """Players are streams of a dataset; those of a world end together."""
    trained = runs.train(DQN | {"env": Signal, "total_steps": 96}, out=tmp_path / "run", show=False)
    steps = runs.datasets.load(runs.collect(trained.run, 40, num_envs=4, env=Signal)).steps
    assert steps.reward.shape == (10, 4)
    assert np.argwhere(steps.truncated).tolist() == [[time, player] for time in (4, 9) for player in range(4)]


def test_streams_are_whole_worlds(tmp_path):
    with mistake("num_envs=5", "2", "try 4 or 6"):
        runs.train(PPO | {"env": Signal, "num_envs": 5, "num_minibatches": 1}, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_the_picture_of_a_world(tmp_path):
    """An episode of 5 steps has 6 frames, which the environment draws once for all players."""
    trained = runs.train(DQN | {"env": Drawn, "total_steps": 96}, out=tmp_path / "run", show=False)
    with Image.open(runs.render(trained.run, env=Drawn, out=tmp_path / "world.gif")) as picture:
        assert picture.n_frames == 6

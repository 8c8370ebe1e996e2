"""Games between the policies of two runs, and against random moves, through Python and the command line."""

import json

import pytest

from rlkit import cli, runs
from rlkit.runs import metrics
from rlkit.runs.matches import wilson
from rlkit.types import ConfigError

# Warnings of the libraries cannot be fixed here.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CONFIG = {
    "agent": "ppo",
    "env": "pgx:tic_tac_toe",
    "env_kwargs": {"opponent": "self"},
    "eval_env_kwargs": {"opponent": "random"},
    "num_envs": 8,
    "num_steps": 16,
    "total_steps": 256,
    "num_minibatches": 1,
    "num_epochs": 1,
    "hidden_sizes": [8],
    "eval_episodes": 6,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    return runs.train(CONFIG, out=tmp_path_factory.mktemp("runs") / "self", show=False).run


def test_a_run_by_self_play_counts_games_and_plays_against_random_moves(run):
    lines = metrics.read(run)
    assert all(line["return_mean"] == 0 for line in lines if line["episodes"])  # what one wins the other loses
    assert 8 / 2 * 32 / 9 - 4 <= sum(line["episodes"] for line in lines) <= 8 / 2 * 32 / 5
    evaluation = json.loads((run / "eval.json").read_text())
    assert evaluation["episodes"] == 6
    assert "players" not in evaluation  # one, against random moves


def test_games_against_random_moves_and_against_a_run(run, tmp_path, capsys):
    score = runs.match(run, games=40, out=tmp_path / "score.json")
    assert score.games == 40
    assert score.wins + score.draws + score.losses == pytest.approx(1)
    assert json.loads((tmp_path / "score.json").read_text())["wins"] == score.wins
    itself = runs.match(run, run, games=40)
    assert itself.wins == pytest.approx(itself.losses)  # the same games from both sides
    assert itself.mean == pytest.approx(0)
    for against in ("random", str(run)):
        assert cli.main(["eval", str(run), "--against", against, "--episodes", "40"]) == 0
        assert "40 games" in capsys.readouterr().out


def test_a_dataset_holds_the_players_of_whole_worlds(run, tmp_path):
    folder = runs.collect(run, 100, tmp_path / "data")
    assert runs.datasets.load(folder).num_envs == 16
    with pytest.raises(ConfigError) as error:
        runs.collect(run, 100, tmp_path / "odd", num_envs=5)
    assert "num_envs=5" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--against", "random", "--episodes", "3"], ["episodes=3", "even"]),
        (["--against", "nowhere"], ["nowhere"]),
        (["--opening", "2"], ["--against"]),
        (["--against", "random", "--opening", "-1"], ["opening=-1"]),
        (["--against", "random", "--eval-env", "CartPole-v1"], ["eval_env", "--against"]),
    ],
)
def test_mistakes_are_one_line(run, capsys, arguments, words):
    assert cli.main(["eval", str(run), *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert all(word in line for word in words)


def test_a_policy_that_saw_its_own_turns_alone_plays_if_it_keeps_nothing(run, tmp_path):
    alone = CONFIG | {"env_kwargs": {}, "eval_env_kwargs": {}, "eval_episodes": 0}
    plain = runs.train(alone, out=tmp_path / "plain", show=False).run
    assert runs.match(plain, run, games=20).games == 20
    assert runs.match(run, plain, games=20).games == 20
    recurrent = runs.train(alone | {"recurrent": "gru", "memory_size": 4}, out=tmp_path / "gru", show=False).run
    with pytest.raises(ConfigError) as error:
        runs.match(run, recurrent, games=20)
    assert "memory" in str(error.value)


def test_one_player_is_no_match(tmp_path):
    config = CONFIG | {"env": "CartPole-v1", "env_kwargs": {}, "eval_env_kwargs": {}, "eval_episodes": 0}
    run = runs.train(config, out=tmp_path / "run", show=False).run
    with pytest.raises(ConfigError, match="needs 2"):
        runs.match(run)


def test_wilsons_interval():
    low, high = wilson(0.0, 1000)
    assert low == 0
    assert high == pytest.approx(0.003827, abs=1e-6)
    assert wilson(0.5, 100) == pytest.approx((0.403832, 0.596168), abs=1e-6)

"""`rlkit render` of games and of environments of several players; acting for one player and for all."""

import re

import jax
import numpy as np
import pytest
from doc_pages import ROOT, blocks
from PIL import Image

import rlkit
from rlkit import cli, envs, runs
from rlkit.runs.pictures import rendering

# Warnings of the libraries cannot be fixed here.
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZES = {"num_envs": 4, "num_steps": 4, "total_steps": 16, "num_minibatches": 1, "hidden_sizes": [4]}
SELF = {"agent": "ppo", "env": "pgx:tic_tac_toe", "env_kwargs": {"opponent": "self"}, **SIZES}
ALPHAZERO = SELF | {"agent": "alphazero", "env_kwargs": {"opponent": "none"}, "num_simulations": 2}


@pytest.fixture(scope="module", params=[SELF, ALPHAZERO], ids=["self", "alphazero"])
def run(request, tmp_path_factory):
    pytest.importorskip("pgx", reason="pip install 'rlkit-jax[pgx]' runs this")
    config = request.param | {"eval_episodes": 0}
    return runs.train(config, out=tmp_path_factory.mktemp("runs") / "run", show=False).run


def test_a_game_is_drawn_move_by_move(run, tmp_path, capsys):
    """Each state has one stone more than the one before; the last one is held."""
    assert cli.main(["render", str(run)]) == 0
    text = (run / "policy.svg").read_text()
    frames = re.split('<g class="frame"', text)[1:]
    # In pgx's drawing a circle is one, beside the eight ends of the grid, and a cross two lines, beside the four.
    stones = [frame.count("<circle") - 8 + (frame.count("<line") - 4) // 2 for frame in frames]
    moves = stones[-1]
    assert 5 <= moves <= 9
    assert stones == [*range(moves + 1), moves, moves]
    assert "policy.svg" in capsys.readouterr().out
    assert "image/svg+xml" in rlkit.load(run)._repr_html_()
    with Image.open(runs.render(run, tmp_path / "x.gif")) as gif:
        assert gif.n_frames == moves + 1
    assert runs.render(run, tmp_path / "x.SVG", max_steps=2).read_text().count('class="frame"') == 5


def test_one_player_acts_for_one_observation_and_vmap_for_all(run, tmp_path, monkeypatch):
    policy = rlkit.load(run)
    obs, _ = jax.jit(policy.env.reset)(jax.random.key(0), policy.params)
    if policy.config.run.agent == "alphazero":
        action, _ = policy.act(obs, jax.random.key(1))
        assert obs["action_mask"][action]
        return
    keys = jax.random.split(jax.random.key(1), 2)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/tic-tac-toe").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    page, _ = blocks(ROOT / "docs/several-players.md", "python")
    exec(compile(page, "page", "exec"), names := {})
    actions = names["actions"]
    assert obs["action_mask"][np.arange(2), actions].all()
    for player in range(2):
        action, _ = policy.act(jax.tree.map(lambda x, player=player: x[player], obs), keys[player])
        assert action == actions[player]


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_frames_show_the_first_of_several_players(tmp_path, monkeypatch, capsys, recurrent):
    _, page = blocks(ROOT / "docs/several-players.md", "python")
    exec(compile(page, "page", "exec"), names := {})
    env = names["Meet"]()
    envs.check(env, None, jax.random.key(0))
    config = {"agent": "ppo", "env": env, "recurrent": recurrent, **SIZES, "eval_episodes": 0}
    run = runs.train(config, out=tmp_path / "run", show=False).run
    drawn, draw = [], rendering.frame
    monkeypatch.setattr(rendering, "frame", lambda *of: (drawn.append(of[1:]), draw(*of))[1])
    assert runs.render(run, env=env) == run / "policy.gif"
    assert len(drawn) == 17
    for state, obs in drawn[:-1]:  # the last state is that of the next episode
        np.testing.assert_array_equal(obs, state["place"] / 8)  # its own place first
    assert cli.main(["render", str(run), "--out", str(tmp_path / "x.svg")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "x.gif" in line
    assert not list(tmp_path.glob("x.*"))

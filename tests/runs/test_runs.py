"""Runs from config to files: what they write, that they resume to the bit, and how they stop."""

import itertools
import json
import sys

import jax
import numpy as np
import pytest
from doc_pages import unexplained
from mistakes import mistake
from tiny_runs import SMALL, THREE, digest

import rlkit
from rlkit import runs
from rlkit.ops.statistics import iqm
from rlkit.runs import loop, metrics, progress
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config.load import load_config
from rlkit.runs.config.parse import parse
from rlkit.runs.pictures import curves
from rlkit.types import ConfigError

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of ten updates, and the metric lines that on_chunk saw."""
    seen = []
    out = tmp_path_factory.mktemp("runs") / "first"
    return loop.train(SMALL, lambda line, state: seen.append(line), out=out, show=False), seen


def test_a_run_directory_holds_what_it_should(trained):
    run, state, evaluation, stopped = trained[0]
    assert stopped is None
    assert {path.name for path in run.iterdir()} == {
        *("config.yaml", "versions.json", "metrics.jsonl", "checkpoints", "eval.json", "curve.png")
    }
    config = load_config(run / "config.yaml")
    assert config.flat() == parse(SMALL).flat()
    assert json.loads((run / "versions.json").read_text())["jax"] == jax.__version__
    assert json.loads((run / "eval.json").read_text()) == evaluation
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert checkpoint.steps(run) == [0, 96, 192, 288, 320]
    assert int(state.step) == 10


def test_a_metric_line_says_what_the_issue_asks_for(trained):
    lines = metrics.read(trained[0].run)
    assert lines == trained[1]
    assert [line["step"] for line in lines] == list(range(32, 321, 32))
    wanted = (
        "step seconds steps_per_second episodes return_mean return_iqm return_min return_max length_mean approx_kl "
    )
    wanted += "policy_loss value_loss clip_fraction entropy explained_variance grad_norm learning_rate"
    assert set(wanted.split()) <= set(lines[0])
    for before, after in itertools.pairwise(lines):
        assert before["seconds"] <= after["seconds"]
    finished = [line for line in lines if line["episodes"]]
    assert finished
    for line in finished:
        assert 1 <= line["return_min"] <= line["return_iqm"] <= line["return_max"] <= 20
        assert line["length_mean"] == line["return_mean"], "CartPole pays 1 a step"
    assert {line["reward_mean"] for line in lines} == {1.0}
    assert all(line["return_mean"] is None for line in lines if not line["episodes"])


def test_the_evaluation_says_how_it_was_made(trained):
    found = trained[0].evaluation
    assert (found["greedy"], found["seeds"], found["episodes"], found["unfinished"]) == (True, [0], 4, 0)
    assert (found["env"], found["env_kwargs"], found["step"]) == ("CartPole-v1", {"max_steps_in_episode": 20}, 320)
    low, high = found["interval"]
    assert found["min"] <= low <= found["iqm"] <= high <= found["max"]
    assert found["mean"] == found["length_mean"]


def test_summaries_worked_by_hand():
    returns = np.full((2, 3, 2), np.nan, np.float32)
    lengths = np.zeros((2, 3, 2), np.int32)
    for place, value in zip(np.ndindex(2, 2, 2), [0.0, 0.0, 0.0, 100.0, 1.0, 2.0, 3.0, 4.0], strict=True):
        returns[place], lengths[place] = value, 5
    found = metrics.summarize(
        {"returns": returns, "lengths": lengths, "loss": np.array([1.0, 3.0]), "odd": np.array([np.nan, 2.0])}, 1
    )
    assert found["episodes"] == 8
    assert found["return_mean"] == 13.75
    assert found["return_iqm"] == np.mean([0, 1, 2, 3]) == float(iqm(returns[lengths > 0]))
    assert (found["return_min"], found["return_max"], found["length_mean"]) == (0, 100, 5)
    assert (found["loss"], found["odd"]) == (2.0, 2.0)
    nothing = metrics.summarize({"returns": returns[:, 2:], "lengths": lengths[:, 2:], "loss": np.array([np.inf])}, 1)
    assert (nothing["episodes"], nothing["return_mean"], nothing["return_min"], nothing["loss"]) == (
        0,
        None,
        None,
        None,
    )
    both = metrics.summarize({"returns": returns[None], "lengths": lengths[None], "loss": np.ones((1, 2))}, 2)
    assert both["return_mean"] == [25.0, 2.5]
    assert both["loss"] == [1.0, 1.0]


def test_seeds_are_one_program_and_equal_single_runs(tmp_path):
    """The environments' integers exactly, parameters to float rounding after one update."""
    many, one = [], []
    together = loop.train(THREE, lambda line, state: many.append(state), out=tmp_path / "many", show=False)
    alone = loop.train(SMALL | {"seed": 6}, lambda line, state: one.append(state), out=tmp_path / "one", show=False)
    second, one = jax.tree.map(lambda x: x[1], many[0]), one[0]
    np.testing.assert_array_equal(second.envs.episode_length, one.envs.episode_length)
    for a, b in zip(jax.tree.leaves(second.agent.params), jax.tree.leaves(one.agent.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    first, *_, last = metrics.read(together.run)
    assert len(first["return_mean"]) == len(first["policy_loss"]) == 3
    assert first["episodes"][1] == metrics.read(alone.run)[0]["episodes"]
    assert together.evaluation["seeds"] == [5, 6, 7]
    assert together.evaluation["interval_over"] == "seeds"
    assert len(together.evaluation["mean_of_seed"]) == 3
    policy = runs.load(together.run, seed=6)
    final = jax.tree.map(lambda x: x[1], together.state.agent.params)
    assert digest(policy.actor.params) == digest(final)
    with pytest.raises(ConfigError, match="seed=8 must be one of the run's, 5 to 7"):
        runs.load(together.run, seed=8)
    drawn = curves.curve(metrics.read(together.run))
    assert (drawn.seeds, drawn.step[-1]) == (3, last["step"])
    assert all(drawn.low <= drawn.center)
    assert all(drawn.center <= drawn.high)


def test_evaluations_come_at_their_steps_and_change_nothing(trained, tmp_path):
    run = loop.train(SMALL | {"eval_every": 96}, out=tmp_path / "run", show=False)
    lines = metrics.read(run.run)
    assert [line["step"] for line in lines if "eval_return_mean" in line] == [96, 192, 288]
    assert [unexplained(line) for line in lines] == [[]] * len(lines)
    assert digest(run.state) == digest(trained[0].state)


def test_a_loaded_policy_acts(trained):
    """The example in the docstring of `rlkit.load`."""
    agent = rlkit.load(trained[0].run)
    obs, state = agent.env.reset(jax.random.key(0), agent.params)
    action, memory = agent.act(obs, jax.random.key(1))
    assert agent.env.action_space(agent.params).contains(action)
    assert jax.tree.structure(memory) == jax.tree.structure(agent.memory)
    assert (agent.step, agent.config.run.env) == (320, "CartPole-v1")
    assert digest(agent.actor.params) == digest(trained[0].state.agent.params)
    agent.env.step(jax.random.key(2), state, action, agent.params)


def test_a_run_starts_from_anothers_parameters(trained, tmp_path):
    config = SMALL | {"total_steps": 32, "seed": 9, "learning_rate": 0.0}
    started = loop.train(config, out=tmp_path / "a", init_from=trained[0].run, show=False)
    assert digest(started.state.agent.params) == digest(trained[0].state.agent.params)
    assert float(started.state.agent.normalizer.obs.count) > float(trained[0].state.agent.normalizer.obs.count)
    with pytest.raises(ConfigError, match=r"init_from=.* params/.* must be float32\[16.*\], and it is float32\[8"):
        loop.train(config | {"hidden_sizes": [16]}, out=tmp_path / "b", init_from=trained[0].run, show=False)
    assert not (tmp_path / "b").exists()


@pytest.mark.thorough
def test_unfinished_returns_stay_with_the_run_they_came_from(tmp_path):
    config = SMALL | {"normalize_reward": True, "total_steps": 64}
    source = loop.train(config, out=tmp_path / "a", show=False)
    wider = config | {"num_envs": 2 * config["num_envs"], "learning_rate": 0.0}
    started = loop.train(wider, out=tmp_path / "b", init_from=source.run, show=False).state.agent.normalizer
    assert float(started.returns.count) == float(source.state.agent.normalizer.returns.count) + 64


@pytest.mark.thorough
def test_target_networks_are_taken_over_too(tmp_path):
    config = {"agent": "dqn", "env": "CartPole-v1", "num_envs": 2, "num_steps": 4, "hidden_sizes": [8], "capacity": 64}
    config |= {"batch_size": 4, "learning_starts": 0, "eval_episodes": 2}
    source = loop.train(config | {"total_steps": 64, "learning_rate": 0.1}, out=tmp_path / "a", show=False)
    still = config | {"total_steps": 8, "learning_starts": 100, "seed": 3}
    started = loop.train(still, out=tmp_path / "b", init_from=source.run, show=False)
    for part in ("params", "target_params"):
        assert digest(getattr(started.state.agent, part)) == digest(getattr(source.state.agent, part))
    assert digest(source.state.agent.params) != digest(source.state.agent.target_params)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_minibatches": 5}, "num_minibatches=5 must divide"),
        ({"env_kwargs": {"no_such": 1}}, "no_such"),
        ({"wrappers": ["frame_stak:4"]}, "frame_stack"),
        ({"tensorboard": True}, "pip install 'rlkit-jax[tensorboard]'"),
        ({"wandb": "x"}, "pip install 'rlkit-jax[wandb]'"),
        ({"report": True}, "pip install 'rlkit-jax[report]'"),
    ],
)
def test_a_mistake_writes_nothing(tmp_path, monkeypatch, change, said):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with mistake(said):
        loop.train(SMALL | change, out=tmp_path / "run", show=False)
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_every_line(trained, tmp_path, monkeypatch):
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step=None):
            calls.append(("open", folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def close(self):
            calls.append(("close",))

    monkeypatch.setitem(sys.modules, "tensorboardX", type(sys)("tensorboardX"))
    sys.modules["tensorboardX"].SummaryWriter = SummaryWriter
    run = loop.train(SMALL | {"tensorboard": True, "total_steps": 64}, out=tmp_path / "run", show=False).run
    loop.resume(run, overrides={"total_steps": 128}, show=False)
    opened = [call for call in calls if call[0] == "open"]  # steps from the last number on are written again
    assert opened == [("open", str(run / "tensorboard"), 1), ("open", str(run / "tensorboard"), 65)]
    assert calls[-1] == ("close",)
    losses = [call[1:] for call in calls if call[0] == "policy_loss"]
    assert losses == [(line["policy_loss"], line["step"]) for line in metrics.read(run)]


def test_a_picture_that_cannot_be_written_fails_no_training(tmp_path, capsys):
    def obstruct(line, state):
        (tmp_path / "run" / "curve.png").mkdir(exist_ok=True)

    trained = loop.train(SMALL | {"total_steps": 64}, obstruct, out=tmp_path / "run")
    assert trained.evaluation["step"] == 64
    assert "curve.png" in capsys.readouterr().err


def test_wandb_gets_every_line_and_a_resumed_run_goes_on_in_its_curves(tmp_path, monkeypatch):
    sessions = []

    class Session:
        def __init__(self, **arguments):
            self.arguments, self.lines, self.finished = arguments, [], False
            sessions.append(self)

        def log(self, scalars, step):
            self.lines.append((scalars["policy_loss"], step))

        def finish(self):
            self.finished = True

    monkeypatch.setitem(sys.modules, "wandb", type(sys)("wandb"))
    sys.modules["wandb"].init = Session
    config = SMALL | {"wandb": "project", "total_steps": 96}
    stopped = loop.train(config, lambda line, state: line["step"] == 64, out=tmp_path / "run", show=False)
    loop.resume(stopped.run, overrides={"wandb": "project"}, show=False)
    first, second = sessions
    assert first.finished
    assert second.finished
    assert first.arguments["project"] == "project"
    assert first.arguments["id"] == second.arguments["id"]
    assert second.arguments["resume"] == "allow"
    assert first.lines + second.lines == [(line["policy_loss"], line["step"]) for line in metrics.read(stopped.run)]


def test_plain_progress_is_plain(capsys):
    display = progress.make_display(1000)
    assert isinstance(display, progress.Plain)
    line = {"return_mean": [10.0, None], "seconds": 2.0, "steps_per_second": 1234567.0}
    with display:
        display.update(100, line)
        display.update(200, line)  # too soon after the one before
        display.update(1000, line | {"return_mean": None, "reward_mean": [-0.25, 0.75]})
        display.update(1000, line | {"return_mean": None})
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "100/1k steps, 1.23M/s, return 10",
        "1k/1k steps, 1.23M/s, no episode ended, reward 0.25 a step, 0 s left",
        "1k/1k steps, 1.23M/s, no episode ended, 0 s left",
    ]


def test_the_time_left_follows_from_all_lines_but_the_first(capsys):
    """The first line has what happens once, such as compilation."""
    display = progress.Plain(1000, progress.describe_run, seconds=0.0)
    for step, seconds in ((100, 50.0), (200, 51.0), (400, 53.0)):
        display.update(step, {"return_mean": 1.0, "seconds": seconds, "steps_per_second": 100.0})
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines[1:]] == ["8 s left", "6 s left"]
    assert "left" not in lines[0]


def test_the_bar_shows_steps_speed_return_and_time_left():
    import io

    from rich.console import Console

    out = io.StringIO()
    with progress.Bar(1000, progress.describe_run, Console(file=out, force_terminal=True, width=120)) as bar:
        bar.update(500, {"return_mean": 10.0, "seconds": 2.0, "steps_per_second": 5000.0})
    assert "500/1k steps, 5k/s, return 10" in out.getvalue()

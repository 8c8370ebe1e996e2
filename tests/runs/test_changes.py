"""A run that goes on with other keys: longer, with other scalars, or refused; never silently as before."""

import json
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from compilations import remembered_programs
from mistakes import mistake
from tiny_runs import SMALL, digest, shared_compilations

import rlkit
from rlkit import agents
from rlkit.cli import main
from rlkit.hosts.processes import Interrupted
from rlkit.runs import evaluations, loop, metrics, scores
from rlkit.runs.checkpoints import checkpoint
from rlkit.runs.config import changes
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
SCHEDULED = {**SMALL, "learning_rate": 0.01, "learning_rate_schedule": "linear"}


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    with shared_compilations(), remembered_programs():
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of ten updates, whose learning rate ended at zero."""
    return loop.train(SCHEDULED, out=tmp_path_factory.mktemp("runs") / "run", show=False)


@pytest.fixture
def finished(trained, tmp_path):
    """A copy of the run, which a test may change."""
    return trained._replace(run=Path(shutil.copytree(trained.run, tmp_path / "run")))


def steps_of(run):
    return [line["step"] for line in metrics.read(run)]


def last_rate(run):
    return metrics.read(run)[-1]["learning_rate"]


def test_a_finished_run_is_made_longer_and_learns(finished, capfd):
    """Twice the run with the keys' own meaning: the schedule ends with the longer run."""
    before = jax.tree.map(np.asarray, finished.state.agent.params)
    run, steps = finished.run, SMALL["total_steps"]
    longer = loop.resume(run, overrides={"total_steps": 2 * steps})
    assert "schedules that end with the run now end at step 640" in capfd.readouterr().err
    assert float(longer.state.agent.hyper.schedule_steps) == 2 * steps
    assert longer.evaluation["step"] == steps_of(run)[-1] == 2 * steps
    assert any(
        (np.asarray(a) != b).any()
        for a, b in zip(jax.tree.leaves(longer.state.agent.params), jax.tree.leaves(before), strict=True)
    )
    assert json.loads((run / "changes.json").read_text()) == [
        {"step": steps, "changed": {"total_steps": [str(steps), str(2 * steps)]}}
    ]
    again = loop.resume(run, show=False)  # the config of the run is the new one
    assert digest(again.state) == digest(longer.state)


def test_an_edited_config_is_applied_like_keys(finished, tmp_path):
    config = finished.run / "config.yaml"
    text = config.read_text()
    assert "total_steps: 320" in text
    config.write_text(text.replace("total_steps: 320", "total_steps: 480").replace("\ngamma: 0.99", "\ngamma: 0.5"))
    longer = loop.resume(finished.run, show=False)
    assert longer.evaluation["step"] == 480
    assert float(longer.state.agent.hyper.gamma) == 0.5
    (entry,) = json.loads((finished.run / "changes.json").read_text())
    assert entry["changed"] == {"total_steps": ["320", "480"], "gamma": ["0.99", "0.5"]}


def test_scalars_change_from_the_checkpoint_on(tmp_path):
    """With a learning rate of zero from the middle on, the parameters stay those of the middle."""
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 160, out=tmp_path / "run", show=False)
    params = digest(stopped.state.agent.params)
    resumed = loop.resume(stopped.run, overrides={"learning_rate": 0.0}, show=False)
    assert digest(resumed.state.agent.params) == params
    assert "learning_rate: 0.0" in (stopped.run / "config.yaml").read_text()


def test_changes_add_up(tmp_path):
    stopped = loop.train(SMALL, lambda line, state: line["step"] == 160, out=tmp_path / "run", show=False)
    loop.resume(stopped.run, lambda line, state: line["step"] == 224, overrides={"gamma": 0.9}, show=False)
    loop.resume(stopped.run, overrides={"gamma": 0.8}, show=False)
    entries = json.loads((stopped.run / "changes.json").read_text())
    assert entries == [
        {"step": 160, "changed": {"gamma": ["0.99", "0.9"]}},
        {"step": 224, "changed": {"gamma": ["0.9", "0.8"]}},
    ]


# The state has a kl_coef of its own.
@pytest.mark.parametrize(("key", "value"), [("num_envs", 8), ("seed", 3), ("num_epochs", 7), ("kl_coef", 0.5)])
def test_keys_that_shape_the_program_are_refused_by_name(finished, key, value):
    before = {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"^{key}=.* must stay .*has begun; .*--init-from"):
        loop.resume(finished.run, overrides={key: value}, show=False)
    assert {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()} == before


def test_an_edited_config_is_refused_where_the_policy_is_loaded(finished):
    config = finished.run / "config.yaml"
    config.write_text(config.read_text().replace("num_envs: 4", "num_envs: 8"))
    with pytest.raises(ConfigError, match=r"^num_envs=8 must stay 4"):
        rlkit.load(finished.run)


def test_a_finished_run_is_rewritten_only_where_steps_follow(finished):
    """Keys of training are refused then; what is evaluated at the end is not, and config.yaml stays what trained."""
    before = {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()}
    with mistake("gamma=0.5", "ended at step 320; add --total_s"):
        loop.resume(finished.run, overrides={"gamma": 0.5}, show=False)
    assert {path: path.read_bytes() for path in finished.run.rglob("*") if path.is_file()} == before
    again = loop.resume(finished.run, overrides={"eval_episodes": 3, "total_steps": 319}, show=False)
    assert again.evaluation["episodes"] == 3
    assert (finished.run / "config.yaml").read_bytes() == before[finished.run / "config.yaml"]
    assert not (finished.run / "changes.json").exists()


def test_a_schedule_that_was_given_does_not_stretch_with_the_run(tmp_path, capfd):
    """Also one of as many steps as the run had at first."""
    first = loop.train({**SCHEDULED, "schedule_steps": 320}, out=tmp_path / "run", show=False)
    assert "schedule_steps: 320.0" in (first.run / "config.yaml").read_text()
    longer = loop.resume(first.run, overrides={"total_steps": 640})
    assert float(longer.state.agent.hyper.schedule_steps) == 320
    assert "schedules that end with the run" not in capfd.readouterr().err
    assert last_rate(first.run) == 0


@pytest.mark.parametrize("steps", [100, 1])  # the second is less than one update, too
def test_a_run_cannot_end_before_the_step_that_it_has_reached(finished, steps):
    with pytest.raises(ConfigError, match=rf"^total_steps={steps} must be at least 320, which the run has reached"):
        loop.resume(finished.run, overrides={"total_steps": steps}, show=False)


def test_a_checkpoint_without_a_config_can_be_resumed(tmp_path, monkeypatch):
    """One of a version that did not record it."""
    extra = loop.Session._extra
    with monkeypatch.context() as patch:
        patch.setattr(
            loop.Session,
            "_extra",
            lambda self, *args: {k: v for k, v in extra(self, *args).items() if k not in ("config", "changes", "best")},
        )
        stopped = loop.train(SMALL, lambda line, state: line["step"] == 160, out=tmp_path / "run", show=False)
    assert loop.resume(stopped.run, show=False).evaluation["step"] == 320


@pytest.mark.parametrize("agent", agents.names())
def test_hyper_may_change_and_what_shapes_the_state_must_stay(agent):
    for key, may in {"learning_rate": True, "eval_every": True, "env": False, "hidden_sizes": False}.items():
        assert changes.may_change(key, agent) == may
    assert not changes.may_change("kl_coef", "ppo")


def test_keep_best_keeps_the_best_evaluation(tmp_path, monkeypatch):
    """The best of three evaluations is neither the first nor the last, and older than the newest checkpoints."""
    means = iter([1.0, 5.0, None, 2.0, 5.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(evaluations.Evaluations, "entries", lambda self, state: {"eval_return_mean": next(means)})
    config = {**SMALL, "eval_every": 32, "keep_best": True, "keep_checkpoints": 1}
    trained = loop.train(config, out=tmp_path / "run", show=False)
    assert checkpoint.steps(trained.run) == [64, 320]
    assert rlkit.load(trained.run, best=True).step == 64
    assert rlkit.load(trained.run).step == 320
    assert main(["eval", str(trained.run), "--best", "--episodes", "4"]) == 0
    assert json.loads((trained.run / "eval.json").read_text())["step"] == 320
    assert main(["render", str(trained.run), "--step", "64", "--max-steps", "2"]) == 0
    with pytest.raises(SystemExit):
        main(["eval", str(trained.run), "--best", "--step", "64"])


def test_best_needs_a_run_that_kept_it(finished):
    with pytest.raises(ConfigError, match=r"keep_best: true for its best checkpoint; give a step, one of .*320"):
        rlkit.load(finished.run, best=True)
    with pytest.raises(ConfigError, match=r"^keep_best=true .*eval_every=null .*try eval_every: 16"):
        loop.train({**SMALL, "keep_best": True}, show=False)


def test_an_evaluation_that_ctrl_c_interrupts_is_made_after_resuming(tmp_path, monkeypatch):
    means = iter([None, 5.0, 2.0, 3.0, 1.0])

    def summary(*arguments):
        if (mean := next(means)) is None:
            signal.raise_signal(signal.SIGINT)
            raise Interrupted
        return {"return_mean": mean}

    monkeypatch.setattr(scores, "summary", summary)
    config = {**SMALL, "eval_every": 96, "keep_best": True, "keep_checkpoints": 1}
    run = loop.train(config, out=tmp_path / "run", show=False).run
    (step,) = set(checkpoint.steps(run)) - {0}
    with pytest.raises(ConfigError, match=r"must have finished an evaluation"):
        rlkit.load(run, best=True)
    loop.resume(run, show=False)
    assert rlkit.load(run, best=True).step == step


def test_the_best_evaluation_in_another_environment_is_forgotten(tmp_path, monkeypatch):
    means = iter([5.0, 2.0, 3.0, 1.0])
    monkeypatch.setattr(evaluations.Evaluations, "entries", lambda self, state: {"eval_return_mean": next(means)})
    config = {**SMALL, "eval_every": 96, "keep_best": True}
    run = loop.train(config, lambda line, state: line["step"] == 96, out=tmp_path / "run", show=False).run
    assert rlkit.load(run, best=True).step == 96
    resumed = loop.resume(run, overrides={"eval_env": "CartPole-v1"}, show=False)
    evaluated = [line["step"] for line in metrics.read(run) if line.get("eval_return_mean") == 3.0]
    assert [rlkit.load(resumed.run, best=True).step] == evaluated


def test_resume_takes_keys_on_the_command_line(finished, capsys):
    run = str(finished.run)
    assert main(["resume", run, "--total-steps", "384", "--learning-rate=0.5"]) == 0
    assert main(["resume", run, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "--total_steps 384" in help_text
    assert "--num_envs" not in help_text
    assert main(["resume", run, "--num-envs", "2"]) == 2


def test_a_closed_terminal_saves_like_sigterm(tmp_path):
    def hang_up(line, state):
        if line["step"] == 160:
            os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
    try:
        stopped = loop.train(SMALL, hang_up, out=tmp_path / "run", show=False)
        assert (stopped.signal, checkpoint.steps(stopped.run)[-1]) == (signal.SIGHUP, 160)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
        assert loop.resume(stopped.run, hang_up, show=False).signal is None
    finally:
        signal.signal(signal.SIGHUP, before)

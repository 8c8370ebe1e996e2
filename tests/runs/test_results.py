"""Results in Python: their text without the arrays of a state, and the pictures of `runs` as on the command line."""

import inspect
import signal
from pathlib import Path

import pytest
from tiny_runs import THREE, shared_compilations

import rlkit
from rlkit import runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with shared_compilations():
        yield runs.train(THREE | {"total_steps": 192}, out=tmp_path_factory.mktemp("runs") / "run", show=False)


def test_a_result_is_two_lines_with_the_run_its_step_and_its_evaluation(trained):
    first, second = repr(trained).splitlines()
    assert first == f"Trained(run={str(trained.run)!r}, after 6 updates)"
    assert "step 192: greedy return" in second
    assert "not evaluated" in repr(trained._replace(evaluation=None))
    assert "stopped by SIGINT" in repr(trained._replace(evaluation=None, signal=signal.SIGINT))


def test_a_policy_is_one_line_with_the_run_its_step_and_the_return_at_that_step(trained):
    text = repr(rlkit.load(trained.run))
    mean = trained.evaluation["mean"]
    assert text == f"Policy(run={str(trained.run)!r}, ppo on CartPole-v1, step 192, greedy return {mean:.4g})"
    assert "greedy return" not in repr(rlkit.load(trained.run, step=96))
    (trained.run / "eval.json").write_text("[")
    assert repr(rlkit.load(trained.run)).endswith("step 192)")


def test_render_and_plot_are_the_commands_of_these_names(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runs.render(trained.run, max_steps=3).read_bytes().startswith(b"GIF89a")
    assert (trained.run / "policy.gif").exists()
    assert runs.plot(trained.run) == runs.plot([str(trained.run)]) == [Path("curves.png"), Path("curves.svg")]
    assert Path("curves.png").exists()


def test_the_names_of_runs_are_functions_and_classes_beside_the_datasets():
    modules = [name for name in runs.__all__ if inspect.ismodule(getattr(runs, name))]
    assert modules == ["datasets"]
    assert all(getattr(runs, name).__doc__ for name in runs.__all__)

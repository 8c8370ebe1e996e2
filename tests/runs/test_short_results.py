"""What a notebook shows of a result: a few lines, without the arrays of a state."""

import signal

import pytest
from tiny_runs import SMALL, shared_compilations

import rlkit
from rlkit import runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with shared_compilations(tmp_path_factory.getbasetemp() / "xla"):
        yield runs.train(SMALL | {"num_seeds": 2}, out=tmp_path_factory.mktemp("runs") / "run", show=False)


def test_a_result_is_two_lines_with_the_run_its_step_and_its_evaluation(trained):
    first, second = repr(trained).splitlines()
    assert first == f"Trained(run={str(trained.run)!r}, after 10 updates)"
    assert "step 320: greedy return" in second
    assert "not evaluated" in repr(trained._replace(evaluation=None))
    assert "stopped by SIGINT" in repr(trained._replace(evaluation=None, signal=signal.SIGINT))


def test_a_policy_is_one_line_with_the_run_its_step_and_the_return_at_that_step(trained):
    text = repr(rlkit.load(trained.run))
    mean = trained.evaluation["mean"]
    assert text == f"Policy(run={str(trained.run)!r}, ppo on CartPole-v1, step 320, greedy return {mean:.4g})"
    assert "greedy return" not in repr(rlkit.load(trained.run, step=288))
    (trained.run / "eval.json").write_text("[")
    assert repr(rlkit.load(trained.run)).endswith("step 320)")

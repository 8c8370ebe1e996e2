"""Remedies for quantities that are not finite, and the reason for a missing learning curve."""

import json

import pytest

from rlkit.runs import run_directory
from rlkit.runs.pictures import curves
from rlkit.runs.programs.finite import remedy


@pytest.mark.parametrize(
    "quantity", ["reward of environment 0", "env='a:B': obs[0] of environment 1 of worker 0, nan,"]
)
def test_the_remedy_for_a_reward_or_observation_names_the_environment(quantity):
    assert "it came from the environment" in remedy(quantity)
    assert "learning_rate" not in remedy(quantity)
    assert "it came from the environment" in remedy("observations of seed 3")


@pytest.mark.parametrize("quantity", ["loss", "grad_norm of seed 5", "params"])
def test_the_remedy_for_a_loss_or_parameter_names_the_learning_rate(quantity):
    assert "learning_rate or max_grad_norm" in remedy(quantity)


@pytest.mark.parametrize("mean", [None, 3.0])
def test_a_run_with_one_metric_line_has_a_curve_or_a_reason(tmp_path, mean):
    (tmp_path / run_directory.CONFIG).write_text("agent: ppo\n")
    (tmp_path / run_directory.METRICS).write_text(json.dumps({"step": 8, "return_mean": mean}) + "\n")
    problem = curves.draw(tmp_path, name="ppo", title="x")
    assert (tmp_path / "curve.png").exists() == (mean is not None)
    assert (problem is None) == (mean is not None)
    assert problem is None or problem.endswith("every seed finished an episode; train longer")

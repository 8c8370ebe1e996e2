"""Remedies for quantities that are not finite, and the reason for a missing learning curve."""

import json

import numpy as np
import pytest
from tiny_runs import SMALL

from rlkit.runs import loop, run_directory
from rlkit.runs.config.parse import parse
from rlkit.runs.pictures import curves
from rlkit.runs.programs.finite import largest_reward, remedy

HOST = {"env": "host_envs:Target", "env_kwargs": {}, "backend": "serial"}
HUGE = 1e30


def remedy_of(quantity, reward=1.0, **values):
    return remedy(quantity, parse(SMALL | values), reward)


@pytest.mark.parametrize(
    "quantity", ["reward of environment 0", "env='a:B': obs[0] of environment 1 of worker 0, nan,"]
)
def test_the_remedy_for_a_reward_or_observation_names_the_environment(quantity):
    assert "it came from the environment" in remedy_of(quantity)
    assert "learning_rate" not in remedy_of(quantity)
    assert "it came from the environment" in remedy_of("observations of seed 3")


@pytest.mark.parametrize("checked", [True, False])
def test_the_check_of_the_environment_is_a_remedy_where_it_is_off(checked):
    assert ("env_check: true" in remedy_of("reward of environment 0", env_check=checked)) != checked


@pytest.mark.parametrize("quantity", ["loss", "grad_norm of seed 5", "params"])
def test_the_remedy_for_a_loss_or_parameter_names_the_learning_rate(quantity):
    assert "learning_rate or max_grad_norm" in remedy_of(quantity)


@pytest.mark.parametrize("quantity", ["value_loss", "params of seed 5", "rewards of environment 0"])
def test_huge_rewards_are_the_likely_cause(quantity):
    text = remedy_of(quantity, HUGE)
    assert "rewards are the likely cause, with a mean of 1e+30" in text
    assert "learning_rate" not in text


@pytest.mark.parametrize("quantity", ["obs of environment 0", "env='a:B': obs[0] of environment 1 of worker 0, nan,"])
def test_huge_rewards_are_no_cause_of_an_observation(quantity):
    assert "it came from the environment" in remedy_of(quantity, HUGE)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, {"normalize_reward", "clip_reward", "scale_reward"}),
        ({"normalize_reward": True}, {"clip_reward", "scale_reward"}),
        (HOST, {"normalize_reward", "clip_reward", "scale_reward"}),
        (HOST | {"normalize_reward": True}, {"clip_reward", "scale_reward"}),
        (HOST | {"env": "envpool:Pong-v5", "normalize_reward": True}, {"in the environment"}),
    ],
)
def test_the_remedies_for_huge_rewards_are_those_that_the_run_has_and_lacks(values, named):
    text = remedy_of("value_loss", HUGE, **values)
    remedies = {"normalize_reward", "clip_reward", "scale_reward", "in the environment"}
    assert {name for name in remedies if name in text} == named


def test_the_largest_reward_of_a_chunk():
    assert largest_reward({"reward_mean": np.float32([[1.0, -7.0], [np.nan, 2.0]])}) == 7.0
    assert largest_reward({"reward_mean": np.float32([-np.inf, 0.0])}) == np.inf
    assert largest_reward({"reward_mean": np.float32([np.nan])}) == 0.0
    assert largest_reward({}) == 0.0


@pytest.mark.thorough
def test_a_run_with_rewards_of_1e30_names_them(tmp_path):
    values = SMALL | HOST | {"wrappers": ["scale_reward:1e30"], "eval_episodes": 0}
    with pytest.raises(loop.NonFiniteError, match=r"is not finite .* rewards are the likely cause, .*clip_reward"):
        loop.train(values, out=tmp_path / "run", show=False)


@pytest.mark.parametrize("mean", [None, 3.0])
def test_a_run_with_one_metric_line_has_a_curve_or_a_reason(tmp_path, mean):
    (tmp_path / run_directory.CONFIG).write_text("agent: ppo\n")
    (tmp_path / run_directory.METRICS).write_text(json.dumps({"step": 8, "return_mean": mean}) + "\n")
    problem = curves.draw(tmp_path, name="ppo", title="x")
    assert (tmp_path / "curve.png").exists() == (mean is not None)
    assert (problem is None) == (mean is not None)
    assert problem is None or problem.endswith("every seed finished an episode; train longer")

"""The mean reward of a step, in every metric line: what moves while no episode ends."""

import pytest

from rlkit.runs import loop, metrics

RUN = {"agent": "ppo", "num_envs": 2, "num_steps": 4, "total_steps": 16, "hidden_sizes": [4], "num_epochs": 1}
RUN |= {"num_minibatches": 1, "eval_episodes": 1, "backend": "serial"}


@pytest.mark.parametrize("env", [pytest.param("Probe-ActionReward", marks=pytest.mark.slow), "host_envs:Target"])
def test_every_line_has_the_mean_reward_of_its_steps(tmp_path, env):
    """Episodes of these environments have one step, so that it is the mean return."""
    lines = metrics.read(loop.train(RUN | {"env": env}, out=tmp_path / "run", show=False).run)
    assert lines
    for line in lines:
        assert line["length_mean"] == 1
        assert line["reward_mean"] == pytest.approx(line["return_mean"])
        assert line["reward_mean"] != 0

"""A separate environment of evaluations, and runs without any."""

import json

import pytest
from mistakes import mistake
from tiny_runs import SMALL

from rlkit import runs
from rlkit.cli import main
from rlkit.runs import metrics
from rlkit.runs.config.load import load_config
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
SHORT = SMALL | {"total_steps": 32, "num_steps": 8}
HOST = {key: value for key, value in SHORT.items() if key != "env_kwargs"} | {
    "env": "host_envs:Counter",
    "num_steps": 4,
    "total_steps": 16,
    "backend": "serial",
}


def test_greedy_episodes_are_played_in_another_environment(tmp_path):
    """The rewards of a Counter are 1 + 2 + 3 in an episode of three steps; those of a Picture of four 1 + 2 + 3 + 4."""
    trained = runs.train(HOST | {"eval_env": "host_envs:Picture"}, out=tmp_path / "run", show=False)
    assert trained.evaluation["env"] == "host_envs:Picture"
    assert trained.evaluation["mean"] == 10
    assert metrics.read(trained.run)[-1]["return_mean"] == 6


@pytest.mark.thorough
def test_greedy_episodes_in_jax_and_none_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="eval_env='Pendulum-v1' must have the observation space of env="):
        runs.train(SHORT | {"env_kwargs": {}, "eval_env": "Pendulum-v1"}, out="wrong", show=False)
    (tmp_path / "config.yaml").write_text("\n".join(f"{k}: {json.dumps(v)}" for k, v in SHORT.items()))
    assert main(["train", "config.yaml", "--eval_episodes", "0", "--out", "run"]) == 0
    assert capsys.readouterr().out == "no evaluation (eval_episodes: 0)\nrun\n"
    assert not (tmp_path / "run" / "eval.json").exists()
    assert main(["eval", "run"]) == 2
    assert "run='run' has eval_episodes: 0, no evaluation; add e.g. --episodes" in capsys.readouterr().err
    assert main(["eval", "run", "--episodes", "2", "--eval-env", "CartPole-v1"]) == 0


def test_episodes_may_have_almost_no_limit(tmp_path):
    trained = runs.train(SHORT | {"env_kwargs": {"max_steps_in_episode": 2**31 - 1}}, out=tmp_path / "run", show=False)
    assert trained.evaluation["episodes"] == 4


def test_evaluations_have_parameters_and_wrappers_of_their_own(tmp_path, capsys):
    """A Counter of five steps gives 15, one that is cut after two steps 3; training has episodes of three steps."""
    values = HOST | {"env_kwargs": {"length": 3}, "eval_env_kwargs": {"length": 5}}
    trained = runs.train(values, out=tmp_path / "run", show=False)
    assert (trained.evaluation["env_kwargs"], trained.evaluation["mean"]) == ({"length": 5}, 15)
    assert metrics.read(trained.run)[-1]["return_mean"] == 6
    limited = runs.train(values | {"eval_wrappers": ["time_limit:2"]}, out=tmp_path / "limited", show=False)
    assert (limited.evaluation["wrappers"], limited.evaluation["mean"]) == (["time_limit:2"], 3)
    before = (trained.run / "eval.json").read_bytes()
    words = ["eval", str(trained.run), "--env", "host_envs:Counter", "--episodes", "2"]
    assert main([*words, "--eval-env-kwargs", "{length: 4}", "--eval-wrappers", "[]"]) == 0
    assert "greedy return 10" in capsys.readouterr().out
    assert (trained.run / "eval.json").read_bytes() == before  # it is of the run's own evaluations
    assert main(words) == 0
    assert (trained.run / "eval.json").read_bytes() != before


def test_evaluations_in_jax_have_wrappers_of_their_own(tmp_path):
    values = SHORT | {"wrappers": ["scale_reward:0.1"], "eval_wrappers": ["time_limit:3"]}
    trained = runs.train(values, out=tmp_path / "run", show=False)
    assert (trained.evaluation["mean"], trained.evaluation["length_mean"]) == (3, 3)
    with pytest.raises(ConfigError, match="must have the observation space of env='CartPole-v1'"):
        runs.train(SHORT | {"eval_wrappers": ["frame_stack:2"]}, out=tmp_path / "wrong", show=False)


@pytest.mark.parametrize("values", [SHORT, HOST])
def test_greedy_episodes_have_a_limit_of_their_own(values, tmp_path):
    trained = runs.train(values | {"eval_max_steps": 2}, out=tmp_path / "run", show=False)
    assert (trained.evaluation["episodes"], trained.evaluation["unfinished"] > 0) == (0, True)


def test_mistakes():
    with pytest.raises(ConfigError, match="eval_episodes=0 does not go with eval_every=8; leave out one of them"):
        runs.parse(SHORT | {"eval_episodes": 0, "eval_every": 8})
    with pytest.raises(ConfigError, match="eval_env='gymnasium:CartPole-v1' must be in JAX if env='CartPole-v1' is"):
        runs.parse(SHORT | {"eval_env": "gymnasium:CartPole-v1"})
    with pytest.raises(ConfigError, match="CartPole-v9"):
        runs.parse(SHORT | {"eval_env": "CartPole-v9"})
    with mistake("eval_env='host_envs:Noise' must", "env='host_envs:C"):
        runs.train(HOST | {"eval_env": "host_envs:Noise"}, show=False)


def test_no_file_names_the_code_of_an_evaluation(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(f"{k}: {json.dumps(v)}" for k, v in (SHORT | {"eval_env": "os:system"}).items()))
    with pytest.raises(ConfigError, match=r"eval_env='os:system' is code, .*; add --eval_env .* overrides=") as refused:
        load_config(path)
    assert "--eval_env os:system" in str(refused.value)
    path.write_text("\n".join(f"{k}: {json.dumps(v)}" for k, v in (SHORT | {"eval_wrappers": ["os:system"]}).items()))
    with pytest.raises(ConfigError, match="wrapper='os:system' is code"):
        load_config(path)

"""Runs that an agent and an environment start alone, without a config: `rlkit train ppo --env CartPole-v1`."""

import json

import pytest
from command_line import TINY, compilations_of_commands
from mistakes import mistake
from tiny_runs import SMALL

from rlkit import agents, cli
from rlkit.agents import base
from rlkit.agents.common.config import MinibatchConfig, OffPolicyConfig
from rlkit.runs.config.load import find, load_config, names, read, tuned_for
from rlkit.runs.config.parse import parse
from rlkit.runs.sweeps.config import load_sweep


class Config(base.Config):
    """Of an agent of the user's own, of which these tests read the defaults alone."""


class Hyper(base.Hyper):
    pass


def make(config, obs_space, action_space):
    raise NotImplementedError


@pytest.mark.parametrize("agent", [*agents.names(), f"{__name__}:make"])
@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("Breakout-MinAtar", {}),
        ("gymnasium:CartPole-v1", {}),
        ("atari:Pong", {}),
        ("Pendulum-v1", {"dataset": "data"}),
        ("Probe-Players", {}),
    ],
)
def test_an_agent_and_an_environment_are_enough(agent, env, kwargs):
    config = parse({"agent": agent, "env": env, **kwargs})
    assert {"num_envs", "num_steps", "total_steps"} <= set(config.filled)
    starts = getattr(config.agent, "learning_starts", 0)
    assert config.steps_per_update <= starts + config.steps_per_update < config.run.total_steps
    if isinstance(config.agent, MinibatchConfig):
        config.agent.check_rollout(config.run.num_envs, config.run.num_steps)
    elif isinstance(config.agent, OffPolicyConfig):
        assert config.agent.num_gradient_steps(config.steps_per_update) >= 1
    assert parse(config.flat()).flat() == config.flat()  # the resolved config says all of it
    assert not parse(config.flat()).filled


@pytest.mark.parametrize("agent", agents.names())
def test_defaults_are_of_whole_worlds(agent):
    config = parse({"agent": agent, "env": "Probe-Players"})
    assert config.run.num_envs % 3 == 0
    assert getattr(config.agent, "capacity", 0) % config.run.num_envs == 0
    assert parse({"agent": agent, "env": "Probe-Players", "num_envs": 7}).run.num_envs == 7  # refused where it is made


def test_defaults_depend_on_the_kind_of_task_and_a_given_key_is_kept():
    in_jax, outside = (parse({"agent": "dqn", "env": env}) for env in ("Breakout-MinAtar", "atari:Breakout"))
    vectors = parse({"agent": "dqn", "env": "CartPole-v1", "learning_starts": 7})
    assert (in_jax.agent.learning_starts, outside.agent.learning_starts) == (5000, 50_000)
    assert (outside.run.num_envs, outside.run.num_steps, outside.agent.replay_ratio) == (1, 4, 0.25)
    assert vectors.agent.learning_starts == 7
    assert vectors.run.num_envs > 1
    assert "learning_starts" not in vectors.filled


def test_a_config_with_both_sizes_keeps_the_plain_defaults():
    config = parse({"agent": "dqn", "env": "Breakout-MinAtar", "num_envs": 4, "num_steps": 4})
    assert config.filled == ("total_steps",)
    assert config.agent.replay_ratio == agents.get("dqn").Config().replay_ratio
    for name in names():
        assert "total_steps" in read(find(name)), name
        assert {"num_envs", "num_steps"} <= read(find(name)).keys(), name


def test_the_first_thing_typed_trains_and_names_the_tuned_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with compilations_of_commands():
        assert cli.main(["train", "ppo", "--env", "CartPole-v1", *TINY]) == 0
    out = capsys.readouterr()
    assert "ppo-CartPole-v1" in out.out
    assert json.loads((tmp_path / "runs/ppo-CartPole-v1/eval.json").read_text())["episodes"] == 4
    assert cli.main(["check", "ppo", "--env", "CartPole-v1"]) == 0
    checked = capsys.readouterr().out
    for words in ("num_envs: 32", "total_steps: 1000000", "ppo/cartpole"):
        assert words in checked


def test_the_tuned_configs_are_those_of_the_same_task():
    assert tuned_for(load_config("ppo", {"env": "CartPole-v1"})) == ["ppo/cartpole"]
    assert tuned_for(load_config("ppo", {"env": "CartPole-v1", "wrappers": ["hide_velocity"]})) == [
        "ppo/cartpole_no_velocity"
    ]
    assert tuned_for(load_config("ppo", {"env": "Probe-Memory"})) == []
    assert tuned_for(load_config("ppo/cartpole")) == []


def test_a_sweep_of_an_agent_alone(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("config: ppo\nenv: CartPole-v1\nlearning_rate: {values: [0.1, 0.2]}\n")
    config = load_sweep(file).trial_config({"learning_rate": 0.2})
    assert config.run.num_envs == parse({"agent": "ppo", "env": "CartPole-v1"}).run.num_envs


def test_a_file_of_the_agents_name_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ppo").write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in SMALL.items()))
    assert load_config("ppo").run.env == SMALL["env"]


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("PPO", ["'ppo'"]),
        ("dqn/breakout", ["dqn/breakout_atari", "dqn/breakout_minatar"]),
        ("ppo/cartpool", ["ppo/cartpole"]),
        ("ppo/zzzzzz", ["rlkit train ppo --env"]),
        ("zzzzzz", ["rlkit list"]),
        ("ppo", ["--env", "ppo/"]),
    ],
)
def test_a_wrong_config_is_one_short_line_with_what_is_meant(source, meant):
    with mistake(*meant):
        load_config(source)

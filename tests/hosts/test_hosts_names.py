"""Names of environments outside of JAX: lists of them, and mistakes in one line."""

import importlib.util
import sys
from pathlib import Path

import gymnasium
import host_envs
import pytest
import yaml
from mistakes import mistake

from rlkit import envs, hosts, runs
from rlkit.cli import main
from rlkit.hosts import registry
from rlkit.runs.pictures import rendering
from rlkit.types import ConfigError


def test_lists(capsys, monkeypatch):
    assert main(["list", "gymnasium"]) == 0
    assert "gymnasium:CartPole-v1\n" in capsys.readouterr().out
    if importlib.util.find_spec("ale_py") is None:
        assert main(["list", "atari"]) == 2
        assert (
            "suite='atari' needs the package ale_py; install it: pip install 'rlkit-jax[atari]'"
            in capsys.readouterr().err
        )
    monkeypatch.setattr(registry, "_check_installed", lambda *args: None)
    monkeypatch.setitem(sys.modules, "ale_py", type(sys)("ale_py"))
    monkeypatch.setattr(gymnasium, "register_envs", lambda module: None)
    monkeypatch.setattr(gymnasium, "registry", dict.fromkeys(("ALE/Pong-v5", "ALE/Breakout-v5", "CartPole-v1")))
    assert registry.names("atari") == ["atari:Breakout", "atari:Pong"]


def test_rendering_without_a_screen_names_the_variable(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    text = "FatalError: an OpenGL platform library has not been loaded into this process"
    assert rendering._headless_remedy(text) == "; without a screen, set MUJOCO_GL to egl or osmesa; it is glfw"
    assert rendering._headless_remedy("RuntimeError: broken on purpose") == ""


def test_a_bare_id_of_gymnasium_is_its_environment(capsys):
    values = {"agent": "ppo", "num_envs": 1, "num_steps": 4, "total_steps": 4}
    config = runs.parse(values | {"env": "Taxi-v4", "eval_env": "CliffWalking-v1"})
    assert (config.run.env, config.run.eval_env) == ("gymnasium:Taxi-v4", "gymnasium:CliffWalking-v1")
    assert runs.parse(values | {"env": "CartPole-v1"}).run.env == "CartPole-v1"  # in JAX
    with hosts.make("Taxi-v4", num_envs=1, backend="serial") as pool:
        assert pool.reset().shape == (1,)
    assert main(["check", "ppo/cartpole"]) == 0
    assert "CartPole-v1 (in JAX; Gymnasium's own is gymnasium:CartPole-v1)" in capsys.readouterr().out
    assert main(["list", "mujoco"]) == 0
    assert "gymnasium:HalfCheetah-v5\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gym:CartPole", "did you mean 'gymnasium:CartPole'"),
        ("PongNoFrameskip-v4", "name here is 'atari:Pong', or 'ale:Pong'"),
        ("Pong-ram-v4", "name here is 'atari:Pong', or 'ale:Pong'"),
        ("HalfCheetah", "did you mean 'HalfCheetah-v5'"),
        ("cartpole", "did you mean 'CartPole-v1'"),
        ("atari:ALE/Pong-v5", "try atari:Pong, "),
        ("ale:PongNoFrameskip-v4", "try ale:Pong, "),
        ("not_installed_robots:Reach-v3", "module 'not_installed_robots'.*; install the package"),
        ("gymnasum:CartPole-v1", "did you mean 'gymnasium:CartPole-v1'"),
    ],
)
def test_an_id_that_is_almost_right_leads_to_its_name(name, remedy):
    for make in (
        lambda: runs.parse({"agent": "ppo", "env": name, "num_envs": 1, "num_steps": 4, "total_steps": 4}),
        lambda: hosts.make(name, num_envs=1),
    ):
        with mistake(name, *remedy.split(".*")):
            make()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gymnasium:HalfCheetah", "did you mean 'gymnasium:HalfCheetah-v5'"),
        ("gymnasium:Pong-v5", "whose name here is 'atari:Pong'"),
        ("Pendulum-v1", "did you mean 'gymnasium:Pendulum-v1'"),
        ("registered_envs:tests/Registered-v4", "VersionNotFound"),
        ("host_envs.not_there:Registered-v4", "no module 'host_envs.not_there'"),
    ],
)
def test_a_pool_that_cannot_be_made_names_the_id(name, remedy):
    with pytest.raises(ConfigError, match=remedy):
        hosts.make(name, num_envs=1, backend="serial")


@pytest.mark.slow
def test_an_id_that_a_package_registers_works_in_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(Path(host_envs.__file__).parent))
    env = ["--env", "registered_envs:tests/Registered-v3"]
    config = tmp_path / "config.yaml"
    values = {"agent": "ppo", "num_envs": 2, "num_steps": 8, "total_steps": 32, "hidden_sizes": [4], "eval_episodes": 2}
    config.write_text(yaml.safe_dump(values | {"num_minibatches": 1, "num_epochs": 1, "num_workers": 1}))
    run = str(tmp_path / "run")
    for words in (
        ["check", str(config)],
        ["train", str(config), "--out", run],
        ["eval", run],
        ["render", run],
        ["collect", run, "--out", str(tmp_path / "data"), "--steps", "16", "--num-envs", "2"],
        ["resume", run, "--total_steps", "64"],
    ):
        assert main([*words, *env]) == 0, (words, capsys.readouterr().err)
    config.write_text(yaml.safe_dump(values | {"env": env[1]}))
    assert main(["check", str(config)]) == 2
    assert "is code, and no file may name code to run; add --env registered_envs:" in capsys.readouterr().err


def test_names_outside_of_jax_where_one_in_jax_is_expected():
    with pytest.raises(ConfigError, match=r"is outside of JAX: step it with rlkit.hosts.make\('gymnasium:Taxi-v4'"):
        envs.make("gymnasium:Taxi-v4")
    with pytest.raises(ConfigError, match=r"use rlkit.hosts.make or runs.train, with 'gymnasium:Taxi-v4'"):
        envs.make("Taxi-v4")


def test_a_config_that_is_not_there_leads_to_its_agent():
    with pytest.raises(ConfigError, match=r"rlkit train td3 --env"):
        runs.load_config("td3/hopper")

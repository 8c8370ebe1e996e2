"""Names of environments outside of JAX: lists of them, and mistakes in one line."""

import importlib.util
import sys

import gymnasium
import pytest

from rlkit import runs
from rlkit.cli import main
from rlkit.hosts import registry
from rlkit.runs import rendering
from rlkit.types import ConfigError


def test_a_predecessor_is_named():
    for name in ("gym:CartPole-v1", "gym:CartPole"):
        with pytest.raises(ConfigError, match=f"env='{name}' .*did you mean 'gymnasium:{name[4:]}'"):
            runs.parse({"agent": "ppo", "env": name, "num_envs": 1, "num_steps": 4, "total_steps": 4})


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

"""Environments of PettingZoo by name: with stand-ins of its packages, and with it where it is installed."""

import sys

import numpy as np
import pytest
from mistakes import mistake

from rlkit import hosts
from rlkit.hosts import registry
from rlkit.hosts.worker import pettingzoo_names

MODULES = {
    "meeting_v3": "from player_envs import Meeting as parallel_env",
    "turns_v1": "def env(): ...",
    "needy_v2": "import a_module_that_is_nowhere",
    "base": "",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A family `small` with three names, and an empty PettingZoo."""
    for package in ("pettingzoo", "small_family"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for name, source in MODULES.items():
        (tmp_path / "small_family" / f"{name}.py").write_text(source)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pettingzoo", "small_family")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(pettingzoo_names, "FAMILIES", {"small": "small_family", "absent": "absent_family"})


def make(name, num_envs=3, **kwargs):
    return hosts.make(f"pettingzoo:{name}", num_envs=num_envs, backend="serial", **kwargs)


def test_a_name_is_a_module_of_a_family(packages):
    assert registry.names("pettingzoo") == [
        f"pettingzoo:small/{name}" for name in ("meeting_v3", "needy_v2", "turns_v1")
    ]
    with make("small/meeting_v3", length=2) as pool:
        pool.reset()
        pool.step(np.zeros(3, np.int32))
        assert pool.step(np.zeros(3, np.int32)).lengths.tolist() == [2, 2, 2]
        assert pool.shared_reward


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("small/meetin_v3", ("did you mean 'pettingzoo:small/meeting_v3'",)),
        ("small/base", ("not an installed",)),
        ("other/meeting_v3", ("not an installed",)),
        ("absent/meeting_v3", ("pip install absent_family",)),
        ("small/turns_v1", ("parallel_env", "AEC")),
        ("small/needy_v2", ("a_module_that_is_nowhere",)),
        ("", ("pettingzoo:mpe2/",)),
    ],
)
def test_mistakes(packages, name, words):
    with mistake("env='pettingzoo:", *words):
        make(name)


def test_the_missing_package(monkeypatch):
    monkeypatch.setattr(registry, "_is_installed", lambda module: True)
    found = registry.importlib.util.find_spec
    monkeypatch.setattr(
        registry.importlib.util, "find_spec", lambda name, *rest: None if name == "pettingzoo" else found(name, *rest)
    )
    with mistake("pettingzoo", "pip install 'rlkit-jax[pettingzoo]'"):
        make("mpe2/simple_v3")


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "players", "length"), [("spread_v3", 3, 18), ("tag_v3", 4, 16), ("v3", 1, 4)])
def test_installed_ones(name, players, length):
    for package in ("pettingzoo", "mpe2"):
        pytest.importorskip(package)
    with make(f"mpe2/simple_{name}", 2 * players) as pool:
        obs = pool.reset()
        assert pool.num_players == players
        assert obs["obs"].shape == (2 * players, length)
        assert ("player" in obs) == (name == "tag_v3")
        steps = [pool.step(np.ones(2 * players, np.int32)) for _ in range(25)]
        assert steps[-1].truncated.all()

"""Vector environments of libraries: envpool's by a stand-in with its interface, ale-py's own where it is installed."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

import gymnasium
import numpy as np
import pytest

from rlkit import hosts
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough
OBS = np.arange(2 * 4 * 6 * 5, dtype=np.uint8).reshape(2, 4, 6, 5)  # channels first


class Envs:
    """Two environments of envpool: the third step ends the first one, and the step after that resets it."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 6, 5), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)
    config = {"num_envs": 2}  # noqa: RUF012, as envpool has it
    closed = False
    time = 0

    def reset(self):
        return OBS, {}

    def step(self, actions):
        self.time += 1
        self.actions = actions
        ended = np.array([self.time % 4 == 3, False])
        return OBS + np.uint8(self.time), np.ones(2), ended, np.zeros(2, bool), {}

    def close(self):
        self.closed = True


@pytest.fixture
def envpool(monkeypatch):
    """Install a module envpool that records its calls."""
    module = type(sys)("envpool")
    module.__spec__ = ModuleSpec("envpool", None)
    module.calls, module.envs = [], Envs()

    def make(name, **arguments):
        module.calls.append((name, arguments))
        if name == "None-v0":
            raise AssertionError("no such\n environment")
        return module.envs

    module.make = make
    monkeypatch.setitem(sys.modules, "envpool", module)
    return module


def test_envpool_has_its_channels_last_and_only_real_transitions(envpool):
    with hosts.make("envpool:Pong-v5", num_envs=2, num_workers=3, seed=7, frame_skip=2) as pool:
        ((name, arguments),) = envpool.calls
        assert (name, arguments["num_envs"], arguments["num_threads"], arguments["frame_skip"]) == ("Pong-v5", 2, 3, 2)
        assert pool.observation_space.shape == (6, 5, 4)
        np.testing.assert_array_equal(pool.reset(), np.moveaxis(OBS, 1, -1))
        for time in range(1, 6):
            step = pool.step(np.array([2, 1]))
            np.testing.assert_array_equal(step.next_obs, np.moveaxis(OBS + np.uint8(time), 1, -1))
            np.testing.assert_array_equal(step.terminated, [time == 3, False])
            np.testing.assert_array_equal(step.real, [time != 4, True])
        np.testing.assert_array_equal(envpool.envs.actions, [2, 1])
    assert envpool.envs.closed


def test_an_error_of_the_library_is_one_line(envpool):
    with pytest.raises(ConfigError, match=r"^env='envpool:None-v0' cannot be made: no such environment$"):
        hosts.make("envpool:None-v0", num_envs=2)


def test_the_error_for_a_missing_library_has_the_install_command():
    if importlib.util.find_spec("ale_py"):
        pytest.skip("ale-py is installed")
    with pytest.raises(ConfigError, match=r"pip install 'rlkit-jax\[atari\]'"):
        hosts.make("ale:Breakout", num_envs=2)


def test_atari_with_the_usual_preprocessing():
    """Four gray images, the newest last; each step is four frames, and the same seed gives the same game."""
    pytest.importorskip("ale_py")
    actions = np.random.default_rng(0).integers(0, 4, (40, 2))

    def play(seed):
        with hosts.make("atari:Breakout", num_envs=2, num_workers=2, seed=seed) as pool:
            assert pool.observation_space.shape == (84, 84, 4)
            assert pool.observation_space.dtype == np.uint8
            assert pool.action_space.n == 4
            return [pool.reset(), *(pool.step(action).next_obs for action in actions)]

    one, same, other = np.stack(play(0)), np.stack(play(0)), np.stack(play(1))
    np.testing.assert_array_equal(one, same)
    assert np.any(one != other)
    np.testing.assert_array_equal(one[1:, ..., :3], one[:-1, ..., 1:])
    assert np.any(one[1:, ..., 3] != one[:-1, ..., 3])


def test_the_vector_environment_of_ale_py():
    pytest.importorskip("ale_py")
    actions = np.random.default_rng(0).integers(0, 3, (300, 2))

    def play(seed):
        with hosts.make("ale:SpaceInvaders", num_envs=2, seed=seed, noop_max=30) as pool:
            assert pool.observation_space.shape == (84, 84, 4)
            assert pool.action_space.n == 6
            first = pool.reset()
            return [first, *(pool.step(action) for action in actions)]

    one, same, other = play(0), play(0), play(1)
    np.testing.assert_array_equal(one[0], same[0])
    for a, b in zip(one[1:], same[1:], strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert any(np.any(a.next_obs != b.next_obs) for a, b in zip(one[1:], other[1:], strict=True))
    assert max(step.reward.max() for step in one[1:]) > 1, "rewards are clipped"
    with pytest.raises(ConfigError, match="cannot be made"):
        hosts.make("ale:Nonsense", num_envs=2)
    with pytest.raises(ConfigError, match="autoreset_mode"):
        hosts.make("ale:Breakout", num_envs=2, autoreset_mode="SameStep")

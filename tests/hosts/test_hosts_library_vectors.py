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


def test_scores_of_envpool_are_of_whole_games_where_a_lost_life_ends_an_episode(envpool):
    """A life is lost every fourth step, and with every second one the game is over."""

    class Lives(Envs):
        def step(self, actions):
            *result, _ = super().step(actions)
            over = np.array([self.time % 8 == 7, False])
            return *result, {"terminated": over, "lives": np.ones(2, int), "reward": np.full(2, 5.0)}

    envpool.envs = Lives()
    with hosts.make("envpool:Breakout-v5", num_envs=2, episodic_life=True) as pool:
        pool.reset()
        steps = [pool.step(np.zeros(2, np.int32)) for _ in range(16)]
    assert [i for i, step in enumerate(steps, 1) if step.terminated[0]] == [3, 7, 11, 15]
    scores = [(i, step.returns[0], step.lengths[0]) for i, step in enumerate(steps, 1) if step.lengths[0]]
    assert scores == [(7, 35.0, 7), (15, 35.0, 7)]


def test_an_error_of_the_library_is_one_line(envpool):
    with pytest.raises(ConfigError, match=r"^env='envpool:None-v0' cannot be made: no such environment$"):
        hosts.make("envpool:None-v0", num_envs=2)


def test_the_error_for_a_missing_library_has_the_install_command():
    if importlib.util.find_spec("ale_py"):
        pytest.skip("ale-py is installed")
    with pytest.raises(ConfigError, match=r"pip install 'rlkit-jax\[atari\]'"):
        hosts.make("ale:Breakout", num_envs=2)

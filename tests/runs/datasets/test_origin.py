"""rlkit.runs.datasets.origin: integers of datasets from elsewhere beside those of an environment."""

import numpy as np
import pytest
from gymnasium import spaces
from mistakes import mistake

from rlkit import envs
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.spaces import space, starts
from rlkit.hosts.worker.contract import describe
from rlkit.runs.datasets import origin
from rlkit.runs.datasets.origin import Origin
from rlkit.types import ConfigError

pytestmark = pytest.mark.thorough

OBS, ACTION = spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=1)


def host_env(obs=OBS, action=ACTION):
    trees = describe(obs), describe(action)
    return HostEnv("some:Env", *map(space, trees), *map(starts, trees))


def check(given, env=None):
    origin.check(given, "some data", "some:Env", env or host_env(), None)


SPACES = {
    "equal": (OBS, ACTION, None),
    "bounds": (spaces.Box(-9, 9, (2,), np.float32), ACTION, None),
    "number": (OBS, spaces.Discrete(4, start=1), "integers 1 to 3, and it has integers 1 to"),
    "start": (OBS, spaces.Discrete(3), "integers 1 to 3, and it has integers 0 to 2"),
    "kind": (OBS, spaces.MultiDiscrete([3], start=[1]), "it has integers [1] to [3]"),
    "shape": (spaces.Box(-1, 1, (3,)), ACTION, "float32[2], and it has float32[3]"),
    "structure": (spaces.Dict({"a": OBS}), ACTION, "it has a float32[2]"),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_of_a_dataset_are_those_of_the_environment(name):
    obs, action, message = SPACES[name]
    given = Origin((describe(obs), describe(action)))
    if message is None:
        check(given)
        return
    with mistake("some:Env", message):
        check(given)


def test_spaces_with_parts_are_compared_part_by_part():
    def nested(start):
        parts = spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[5, start]), spaces.MultiBinary(2)))
        return spaces.Dict({"z": spaces.Discrete(2, start=-1), "a": parts})

    check(Origin((describe(nested(6)), describe(ACTION))), host_env(nested(6)))
    expected = r"a/0 integers \[5, 6\] to \[6, 8\], a/1 integers \[0, 0\] to \[1, 1\], z integers -1 to 0, and it has"
    with pytest.raises(ConfigError, match=expected + r" a/0 integers \[5, 7\]"):
        check(Origin((describe(nested(7)), describe(ACTION))), host_env(nested(6)))


def test_an_environment_in_jax_counts_from_0():
    env, params = envs.make("Probe-ActionReward")
    obs = spaces.Box(-1, 1, (1,))
    origin.check(Origin((describe(obs), describe(spaces.Discrete(2)))), "data", "Probe-ActionReward", env, params)
    for given in (Origin((describe(obs), describe(spaces.Discrete(2, start=1)))), Origin(starts=(None, np.array(1)))):
        with pytest.raises(ConfigError, match="Probe-ActionReward"):
            origin.check(given, "data", "Probe-ActionReward", env, params)
    origin.check(Origin(), "data", "Probe-ActionReward", env, params)


@pytest.mark.parametrize(
    ("start", "message"),
    [(None, "must hold action_start, as .* start at 1; add it"), (0, None), (1, None), (2, "=2, .* start at 1")],
)
def test_arrays_say_where_integers_start_if_the_environment_does_not_start_at_0(start, message):
    """The actions 1 and 2 fit both readings, so that nothing is guessed."""
    given = Origin(starts=(None, None if start is None else np.array(start)))
    if message is None:
        check(given)
        return
    with pytest.raises(ConfigError, match=message):
        check(given)

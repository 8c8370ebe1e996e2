"""Spaces of environments outside of JAX: what they become, and integers beyond int32."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from host_envs import Large
from host_runs import DQN

from rlkit import hosts, runs
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.spaces import starts
from rlkit.hosts.worker import contract
from rlkit.runs.programs import host_program
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError


def test_spaces():
    with hosts.make("host_envs:Noise", num_envs=1, backend="serial") as pool:
        assert pool.observation_space == Dict({"x": Box(-10, 10, (2,)), "kind": Discrete(5)})
        assert pool.action_space == Box(-1, 1, (2,))
    with hosts.make("host_envs:Counter", num_envs=1, backend="serial") as pool:
        assert pool.observation_space == Box(0, np.inf, (3,))  # float64 in the environment, float32 in the pool
        assert pool.reset().dtype == np.float32
        assert pool.action_space == Discrete(3)  # 1, 2, 3 in the environment


def test_starts_of_integers():
    """Observations and actions of an environment, and those of rlkit's spaces, which count from 0."""
    with hosts.make("host_envs:Noise", num_envs=2, backend="serial") as pool:
        assert starts(pool.obs_tree) == {"x": 0, "kind": -2}
        assert starts(pool.action_tree) == 0
    tree = contract.describe(
        spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[5, -1]), spaces.Box(0, 255, (2,), np.uint8)))
    )
    env = HostEnv("integers", Discrete(2), Discrete(3), starts(tree), 4)
    assert not env.counts_from_0
    native = (np.array([[6, -1], [5, 1]]), np.array([[3, 255], [0, 1]], np.uint8))
    stored = env.stored_obs(native)
    np.testing.assert_array_equal(stored[0], [[1, 0], [0, 2]])
    assert stored[1] is native[1]
    np.testing.assert_array_equal(env.native_obs(stored)[0], native[0])
    assert env.native_action(2) == 6
    assert HostEnv("floats", Discrete(2), Discrete(3)).counts_from_0
    program = host_program.HostProgram(runs.parse(DQN | {"env": "host_envs:Counter"}))
    program.close()
    assert program.env.native_action(0) == 1


class Odd(gymnasium.Env):
    """A float64 Box of actions with bounds that float32 rounds outwards; observes whether the last action was in it."""

    observation_space = spaces.Box(0, 1, (), np.float32)
    action_space: spaces.Space = spaces.Box(
        np.array([-0.3, 1.0, -np.inf]), np.array([-0.1, 0.7 + 0.6, np.inf]), dtype=np.float64
    )

    def reset(self, *, seed=None, options=None):
        return np.float32(0), {}

    def step(self, action):
        return np.float32(self.action_space.contains(action)), 0.0, False, False, {}


class OddTree(Odd):
    action_space = spaces.Dict({"arm": Odd.action_space})


@pytest.mark.parametrize("make", [Odd, OddTree])
def test_actions_at_float64_bounds_are_in_the_environments_space(make):
    """The bounds of the pool's float32 space are actions of the environment; actions beyond them stay beyond."""
    for make_pool in (
        partial(hosts.make, make, num_envs=1, backend="serial"),
        partial(hosts.from_vector, partial(gymnasium.vector.SyncVectorEnv, [make])),
    ):
        with make_pool() as pool:
            pool.reset()
            space = pool.action_space
            box = space.spaces["arm"] if isinstance(space, Dict) else space
            assert isinstance(box, Box)
            step = np.array([0.1, 0.1, 0], np.float32)
            for bounds, inside in ((box.low, 1), (box.high, 1), (box.low - step, 0), (box.high + step, 0)):
                action = np.asarray(bounds, np.float32)[None]
                assert pool.step({"arm": action} if isinstance(space, Dict) else action).obs[0] == inside


LARGEST, TOO_LARGE = 2**31 - 1, 2**31  # for int32


@pytest.mark.parametrize(
    ("space", "make", "path"),
    [
        (spaces.Box(0, 2**40, (2,), np.int64), lambda x: np.array([1, x], np.int64), ""),
        (spaces.Box(0, 2**32 - 1, (), np.uint32), lambda x: np.uint32(x), ""),
        (spaces.MultiDiscrete([3, 2**40]), lambda x: np.array([1, x]), ""),
        (spaces.Discrete(2**40), int, ""),
        (spaces.Dict({"id": spaces.Box(0, 9, (1,), np.int64)}), lambda x: {"id": np.array([x])}, r"\['id'\]"),
    ],
)
def test_integers_beyond_int32(space, make, path):
    """They do not wrap around, but raise an error of one line, in a reset, a step and a final observation."""

    def values(tree):
        return next(iter(tree.values())) if isinstance(tree, dict) else tree

    for first, second, field in (
        (LARGEST, LARGEST, None),
        (TOO_LARGE, LARGEST, "obs of reset"),
        (LARGEST, TOO_LARGE, "obs of step"),
    ):
        one = partial(Large, space, make(first), make(second))
        sync = partial(gymnasium.vector.SyncVectorEnv, [one], autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
        for make_pool, error_field in (
            (partial(hosts.make, one, num_envs=1, backend="serial"), field),
            (partial(hosts.from_vector, sync), "final_obs" if field == "obs of step" else field),
        ):
            with make_pool() as pool:
                if field is None:
                    observations = [pool.reset(), pool.step(np.zeros(1, np.int32)).next_obs]
                    assert all(np.ravel(values(obs))[-1] == LARGEST for obs in observations)
                    continue
                rule = rf"u?int\d\d whose values must fit int32, got {TOO_LARGE}; return smaller"
                message = rf"{error_field}{path}: expected {rule}"
                with pytest.raises(ConfigError, match=message):  # noqa: PT012
                    pool.reset()
                    pool.step(np.zeros(1, np.int32))

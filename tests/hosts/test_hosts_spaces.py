"""Spaces of environments outside of JAX: what they become, and integers beyond int32."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from host_envs import Large

from rlkit import hosts
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


LARGEST, TOO_LARGE = 2**31 - 1, 2**31  # for int32


@pytest.mark.parametrize(
    ("space", "make", "path"),
    [
        (spaces.Box(0, 2**40, (2,), np.int64), lambda x: np.array([1, x], np.int64), ""),
        (spaces.Box(0, 2**40, (2,), np.uint64), lambda x: np.array([1, x], np.uint64), ""),
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

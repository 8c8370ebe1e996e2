"""Actions of a loaded policy are in the action space of its environment outside of JAX."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from host_envs import Counter
from small_policies import random_policy

from rlkit import runs
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.spaces import space, starts
from rlkit.hosts.worker import contract
from rlkit.spaces import Box, Dict, Discrete
from rlkit.types import ConfigError

ACTIONS = {
    "discrete": spaces.Discrete(3),
    "with a start": spaces.Discrete(3, start=-7),
    "multi-discrete": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "multi-binary": spaces.MultiBinary(4),
    "box": spaces.Box(-1, 1, (2, 2), np.float32),
    "float64": spaces.Box(np.array([-0.3, -np.inf]), np.array([-0.1, 1.3]), dtype=np.float64),
    "scalar": spaces.Box(0, 1, (), np.float32),
    "integers": spaces.Box(0, 255, (2,), np.uint8),
    "tree": spaces.Dict(
        {"b": spaces.Tuple((spaces.Discrete(2, start=1), spaces.Box(-1, 1, (1,), np.float64))), "a": spaces.Discrete(4)}
    ),
}


def env_of(action_space):
    tree = contract.describe(action_space, field="action_space")
    return HostEnv("host", Box(-2, 2, (3,)), space(tree), 0, starts(tree), tree)


@pytest.mark.parametrize("name", ACTIONS)
def test_values_of_every_space_are_in_it(name):
    env = env_of(ACTIONS[name])
    for key in jax.random.split(jax.random.key(0), 5):
        action = env.environment_action(env.action.sample(key))
        assert ACTIONS[name].contains(action)
        assert not any(isinstance(x, jax.Array) for x in jax.tree.leaves(action))


@pytest.mark.parametrize(
    "name",
    [
        *("with a start", "multi-discrete", "float64"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("discrete", "multi-binary", "box")),
    ],
)
def test_a_policy_acts_in_the_space_of_its_environment(name):
    env, obs = env_of(ACTIONS[name]), np.float32([0.5, -1, 1])
    with jax.numpy_dtype_promotion("standard"):
        policy = random_policy("ppo", env.obs, env.action)._replace(env=env)
        action, _ = policy.act(obs, jax.random.key(0))
        many, _ = jax.vmap(policy.act)(np.stack([obs, obs]), jax.random.split(jax.random.key(0)))
    assert ACTIONS[name].contains(action)
    if isinstance(action, np.ndarray):
        before = action.copy()
        action += 1  # of the user's own
        np.testing.assert_array_equal(policy.act(obs, jax.random.key(0))[0], before)
        action = before
    np.testing.assert_allclose(many, np.stack([action, action]), rtol=1e-6)
    with pytest.raises(ConfigError, match=r"^obs must be one observation, \[3\], and it has the shape \[2, 3\]; "):
        policy.act(np.stack([obs, obs]), jax.random.key(0))


def test_a_policy_without_a_host_environment_returns_arrays_of_jax():
    with jax.numpy_dtype_promotion("standard"):
        policy = random_policy("ppo", Box(-2, 2, (3,)), Discrete(2))
        policy = policy._replace(env=policy.env._replace(action_starts=3))
        assert policy.act(np.zeros(3, np.float32), jax.random.key(0))[0] in (3, 4)


@pytest.mark.thorough
def test_a_loaded_policy_steps_its_environment(tmp_path):
    small = {"num_envs": 2, "num_steps": 4, "total_steps": 8, "hidden_sizes": [4], "num_epochs": 1}
    small |= {"num_minibatches": 1, "eval_episodes": 0, "backend": "serial", "agent": "ppo"}
    for name, make in (("gymnasium:FrozenLake-v1", None), ("host_envs:Counter", Counter)):
        run = runs.train(small | {"env": name}, out=tmp_path / name[-4:], show=False).run
        policy = runs.load(run, env=name if make else None)
        env = make() if make else gymnasium.make("FrozenLake-v1")
        obs, _ = env.reset(seed=0)
        action, _ = policy.act(obs, jax.random.key(0))
        assert env.action_space.contains(action)
        env.step(action)


def test_an_observation_without_an_entry_is_refused_in_a_line():
    space = Dict(
        {"joints": Box(-1.0, 1.0, (2,)), "goal": Box(-1.0, 1.0, (1,)), "action_mask": Box(0, 1, (2,), np.int8)}
    )
    policy = random_policy("ppo", space, Discrete(2))
    key, whole = jax.random.key(0), {"joints": np.zeros(2, np.float32), "goal": np.zeros(1, np.float32)}
    policy.act(whole | {"action_mask": np.ones(2, np.int8)}, key)
    for obs, words in (
        ({"joints": whole["joints"]}, "obs must be a dict with the entries .*, and it lacks 'goal'"),
        (np.zeros(3, np.float32), "obs must be a dict with the entries .*, and it is ndarray"),
        (whole | {"goal": np.zeros(2, np.float32)}, r"obs\['goal'\] must be one observation, \[1\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            policy.act(obs, key)

"""Pools of environments outside of JAX, in real processes: real transitions, seeds, the contract, errors."""

import os
import random

import gymnasium
import numpy as np
import pytest
from mistakes import mistake

from rlkit import hosts
from rlkit.hosts.pool import derive
from rlkit.hosts.worker import group
from rlkit.spaces import Box, MultiDiscrete
from rlkit.types import ConfigError

BACKENDS = ("process", "serial")


def play(pool, steps, seed=0):
    """Reset a pool and iterate over (action, step) of random actions."""
    rng = np.random.default_rng(seed)
    pool.reset()
    for _ in range(steps):
        if isinstance(pool.action_space, Box):
            action = rng.uniform(-1, 1, (pool.num_envs, *pool.action_space.shape)).astype(np.float32)
        else:
            action = rng.integers(0, pool.action_space.n, pool.num_envs).astype(np.int32)
        yield action, pool.step(action)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_real_transitions(backend):
    """Episodes of 3 and more steps, never joined: the observation before a reset is kept, the rewards add up."""
    with hosts.make("host_envs:Counter", num_envs=3, num_workers=2, backend=backend, later=1, seed=5) as pool:
        obs = pool.reset()
        ends = np.zeros(3, int)
        for time in range(20):
            step = pool.step(np.full(3, time % 3, np.int32))
            np.testing.assert_array_equal(step.next_obs[:, 1], obs[:, 1] + 1)
            np.testing.assert_array_equal(step.next_obs[:, [0, 2]], obs[:, [0, 2]])
            np.testing.assert_array_equal(step.reward, step.next_obs[:, 1])
            np.testing.assert_array_equal(step.truncated, step.next_obs[:, 1] == 3 + obs[:, 0])
            assert not step.terminated.any()
            assert step.real.all()
            done = step.truncated
            length = step.next_obs[:, 1]
            np.testing.assert_array_equal(step.lengths, np.where(done, length, 0))
            np.testing.assert_array_equal(step.returns, np.where(done, length * (length + 1) / 2, np.nan))
            np.testing.assert_array_equal(step.obs[:, 1], np.where(done, 0, step.next_obs[:, 1]))
            obs, ends = step.obs, ends + done
        assert ends.tolist() == [4, 4, 4]  # 3 + 4 + 5 + 6 = 18 steps


def test_staggered_ends_count_true_steps():
    """Every step of every environment is one transition."""
    with hosts.make("host_envs:Counter", num_envs=2, backend="serial", ends="terminated") as pool:
        steps = [step for _, step in play(pool, 20)]
    assert sum(int(step.real.sum()) for step in steps) == 40
    assert all(step.terminated.tolist() == [t % 3 == 2] * 2 for t, step in enumerate(steps))


def test_same_seed_same_transitions_in_every_backend():
    """Compare 1,000 transitions for different backends and numbers of workers."""
    results = []
    for backend, workers, seed in (
        ("process", 2, 3),
        ("process", 1, 3),
        ("serial", 1, 3),
        ("serial", 1, 4),
    ):
        with hosts.make("host_envs:Noise", num_envs=5, backend=backend, num_workers=workers, seed=seed) as pool:
            steps = [step for _, step in play(pool, 200)]
            results.append(
                [
                    np.stack(x)
                    for x in zip(*[(s.obs["x"], s.next_obs["x"], s.obs["kind"], s.reward) for s in steps], strict=True)
                ]
            )
    first, *same, other = results
    for arrays in same:
        for a, b in zip(first, arrays, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first[0], other[0])
    x, _, kind, _ = first
    assert len({row.tobytes() for row in x.reshape(-1, 2)}) == 1000  # environments and times all differ
    assert kind.min() == 0
    assert kind.max() == 4


def test_reset_begins_the_same_episodes_again():
    with hosts.make("host_envs:Noise", num_envs=2, backend="process") as pool:
        first, again = ([s.reward for _, s in play(pool, 20)] for _ in range(2))
        np.testing.assert_array_equal(np.stack(list(first)), np.stack(list(again)))
        assert not np.array_equal(pool.reset(1)["x"], pool.reset(2)["x"])


def test_a_step_returns_copies():
    with hosts.make("host_envs:Noise", num_envs=2, num_workers=2) as pool:
        steps = [step for _, step in play(pool, 10)]
        for arrays in ([s.obs["x"] for s in steps], [s.next_obs["x"] for s in steps], [s.reward for s in steps]):
            assert len({array.tobytes() for array in arrays}) == 10
            assert not any(np.shares_memory(a, b) for a in arrays for b in arrays if a is not b)


def test_workers_ignore_accelerators_and_ctrl_c():
    """A worker is an interpreter with NumPy and Gymnasium, without JAX."""
    before = dict(os.environ)
    with hosts.make("host_envs:Surroundings", num_envs=1) as pool:
        assert pool.observation_space == MultiDiscrete((2, 2, 2))
        assert pool.action_space == MultiDiscrete((2, 2))
        assert pool.reset().tolist() == [[1, 0, 1]]
    assert dict(os.environ) == before


def test_cartpole_in_processes_is_gymnasiums_own():
    """Sixty steps of four environments, transition by transition, through ends of episodes."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(4)]
    obs = np.stack([env.reset(seed=derive(3, index))[0] for index, env in enumerate(envs)])
    actions, ends = np.random.default_rng(0).integers(0, 2, (60, 4)), 0
    with hosts.make("gymnasium:CartPole-v1", num_envs=4, num_workers=2) as pool:
        np.testing.assert_array_equal(pool.reset(3), obs)
        for action in actions:
            step = pool.step(action)
            for index, env in enumerate(envs):
                final, reward, terminated, truncated, _ = env.step(int(action[index]))
                np.testing.assert_array_equal(step.next_obs[index], final)
                assert (step.reward[index], step.terminated[index], step.truncated[index], step.real[index]) == (
                    *(reward, terminated, truncated),
                    True,
                )
                obs[index] = env.reset()[0] if terminated or truncated else final
                ends += terminated
            np.testing.assert_array_equal(step.obs, obs)
    assert ends > 5


def test_environments_made_by_a_function():
    """A class defined in this function, which no worker could import."""
    import gymnasium

    class Mine(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(2)

        def __init__(self, number):
            self.number = number

        def reset(self, *, seed=None, options=None):
            return self.number, {}

    with hosts.make(Mine, num_envs=2, number=7) as pool:
        assert pool.reset().tolist() == [7, 7]


BREACHES = [
    ("no space", "expected a Gymnasium environment, which has observation_space, got Wrong"),
    (
        "text space",
        "observation_space: expected Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got Text",
    ),
    ("shape", "obs of reset: expected float32[2], as observation_space declares, got float32[3]"),
    (
        "dtype",
        "obs of reset: expected float32[2], as observation_space declares, got float64[2]; return it as np.float32",
    ),
    ("list", "obs of reset: expected float32[2], as observation_space declares, got list [0.0, 0.0]"),
    ("none", "obs of reset: expected float32[2], as observation_space declares, got NoneType None"),
    ("reset", "reset: expected obs, info, got ndarray"),
    ("four values", "step: expected obs, reward, terminated, truncated, info, got 4 values"),
    ("reward", "reward: expected a number, got float64[1]"),
    ("reward text", "reward: expected a number, got str"),
    ("flag", "terminated: expected bool, got int 0"),
    ("late shape", "obs of step: expected float32[2], as observation_space declares, got float32[3]"),
    ("late dtype", "obs of step: expected float32[2], as observation_space declares, got float64[2]"),
]
IN_A_PROCESS = ("no space", "late shape", "reset")  # where, unlike in this process, errors are sent


@pytest.mark.parametrize(
    ("backend", "how", "message"),
    [
        pytest.param(
            backend,
            *breach,
            marks=pytest.mark.slow if backend == "process" and breach[0] not in IN_A_PROCESS else (),
        )
        for backend in BACKENDS
        for breach in BREACHES
    ],
)
def test_the_contract(backend, how, message):
    """Each violation is one line that names the environment, the field, the expected value and the actual one."""

    def run():
        with hosts.make("host_envs:Wrong", num_envs=2, num_workers=1, backend=backend, how=how) as pool:
            list(play(pool, 5))

    with mistake(message, "host_envs:Wrong", "environment 0 of worker 0, seed "):
        run()


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("gymnasium:CartPole-v1", {"num_envs": 0}, "num_envs=0 must be above 0"),
        ("gymnasium:CartPole-v1", {"backend": "thread"}, "backend='thread' must be one of process, serial"),
        ("gymnasium:CartPole-v1", {"timeout": 0}, "timeout=0 must be above 0"),
        ("gymnasium:NoSuch-v1", {}, "env='gymnasium:NoSuch-v1' cannot be made: NameNotFound"),
        ("gymnasium:os:CartPole-v1", {}, "must name one environment after the colon"),
        ("gymnasum:CartPole-v1x!", {}, "is not the name of an environment outside of JAX; did you mean 'gymnasium:"),
        ("gymnasium:CartPole-v1", {"color": 3}, "color"),
        ("host_envs:Odd", {}, "expected a Gymnasium environment, which has reset, got object"),
        ("host_envs:Vector", {}, "expected one Gymnasium environment, got SyncVectorEnv, a vector of them"),
        ("host_envs:Countr", {}, "did you mean 'Counter'"),
        ("host_env:Counter", {}, "env='host_env:Counter' cannot be made: there is no module 'host_env' here or among"),
        ("os:path", {}, "env='os:path' must be a class or a function that makes an environment"),
    ],
)
def test_mistakes(env, settings, message):
    with mistake(message, kind=(ConfigError, hosts.HostError)):
        hosts.make(env, **{"num_envs": 1, "backend": "serial"} | settings)


def test_the_error_for_a_missing_extra_has_the_install_command(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ale_py" else find(name))
    with pytest.raises(ConfigError, match=r"needs the package ale_py; install it: pip install 'rlkit-jax\[atari\]'"):
        hosts.make("atari:Breakout", num_envs=1)


def test_actions_of_another_batch_size():
    with hosts.make("host_envs:Counter", num_envs=3, backend="serial") as pool:
        pool.reset()
        for wrong in (np.zeros(2, np.int32), np.int32(0), np.zeros((3, 1), np.int32)):
            with pytest.raises(ConfigError, match=r"one for each of num_envs=3 environments, \[3\], got \["):
                pool.step(np.asarray(wrong))
        with pytest.raises(ConfigError, match="must have the structure"):
            pool.step({"a": np.zeros(3, np.int32)})


def test_a_closed_pool_can_be_closed_again_and_not_used():
    pool = hosts.make("host_envs:Counter", num_envs=1)
    pool.reset()
    pool.close()
    pool.close()
    with pytest.raises(hosts.HostError, match="closed"):
        pool.step(np.zeros(1, np.int32))


def test_shares_are_even_and_complete():
    for num_envs in range(1, 20):
        for workers in range(1, num_envs + 1):
            shares = group.shares(num_envs, workers)
            assert [env for first, count in shares for env in range(first, first + count)] == list(range(num_envs))
            assert max(count for _, count in shares) - min(count for _, count in shares) <= 1


@pytest.mark.parametrize("name", ["gymnasium:CartPole-v1", "atari:Pong", "my.envs:Mine", "gymnasium:x"])
def test_names_of_host_environments(name):
    assert hosts.is_host(name)
    assert hosts.is_own(name) == name.startswith("my")


@pytest.mark.parametrize("name", ["CartPole-v1", "brax:", "Probe-Memory", "", ":", "gymnasium"])
def test_other_names(name):
    assert not hosts.is_host(name)


def test_worker_processes_seed_the_global_generators():
    """They repeat with the same number of workers. The generators of this process are its own."""

    def observations(seed, backend="process"):
        with hosts.make("host_envs:Global", num_envs=2, num_workers=1, seed=seed, backend=backend) as pool:
            return np.stack([pool.reset(), *(pool.step(np.zeros(2, np.int32)).obs for _ in range(3))])

    np.testing.assert_array_equal(observations(3), observations(3))
    assert (observations(3) != observations(4)).all()
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with hosts.make("host_envs:Noise", num_envs=2, backend="serial") as pool:
        pool.reset()
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002

"""Action masks of environments outside of JAX that are no part of the observation: in infos, and by a method."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from mistakes import mistake

from rlkit import hosts, runs
from rlkit.hosts import validation

pytestmark = pytest.mark.thorough


class Corridor(gymnasium.Env):
    """Three actions, of which the one whose number is the step modulo 3 is legal; others raise. It has four steps."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(3, start=1)

    def __init__(self, where="info"):
        self.where = where

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._obs(), self._info()

    def step(self, action):
        assert action - 1 == self.time % 3, (action, self.time)
        self.time += 1
        done = self.time == 4
        return self._obs(), 1.0, done, False, {} if done else self._info()

    def action_masks(self):
        return np.arange(3) == self.time % 3

    def _obs(self):
        return np.array([self.time], np.float32)

    def _info(self):
        return {"action_mask": self.action_masks()} if self.where == "info" else {}


def make(source, wrappers=(), **kwargs):
    specs = [*wrappers, f"action_mask:{source}"]
    return hosts.make(Corridor, num_envs=2, backend="serial", wrappers=specs, **kwargs)


@pytest.mark.parametrize("source", ["info", "method"])
@pytest.mark.parametrize("wrappers", [(), ("scale_reward:2",)])
def test_a_mask_is_a_leaf_of_the_observation(source, wrappers):
    with make(source, wrappers) as pool:
        obs = pool.reset()
        for time in range(6):
            assert obs["action_mask"].tolist() == [(np.arange(3) == time % 4 % 3).tolist()] * 2
            step = pool.step(np.full(2, time % 4 % 3, np.int32))
            obs = step.obs
            if step.terminated[0]:
                assert step.next_obs["action_mask"].shape == (2, 3)


def test_an_agent_takes_legal_actions_alone(tmp_path):
    config = {"agent": "ppo", "env": Corridor, "wrappers": ["action_mask:info"], "backend": "serial", "num_envs": 2}
    config |= {"num_steps": 8, "total_steps": 32, "hidden_sizes": [4], "num_minibatches": 1, "eval_episodes": 2}
    assert runs.train(config, out=tmp_path / "run", show=False).evaluation["mean"] == 4


class Permissive(Corridor):
    """A corridor that takes every action."""

    def step(self, action):
        return super().step(self.time % 3 + 1)


@pytest.mark.parametrize(("where", "source"), [("info", "info"), ("nowhere", "method")])
def test_a_mask_that_is_not_used_is_found_by_the_check(where, source):
    with hosts.make(Permissive, num_envs=2, backend="serial", where=where) as pool:
        (hint,) = validation.check(pool, 0)
        assert f"for legal actions add the wrapper action_mask:{source}" in hint
    specs = [f"action_mask:{source}"]
    with hosts.make(Permissive, num_envs=2, backend="serial", where=where, wrappers=specs) as pool:
        assert validation.check(pool, 0) == []


def test_an_environment_without_a_mask_has_no_hint():
    with hosts.make("gymnasium:CartPole-v1", num_envs=2, backend="serial") as pool:
        assert validation.check(pool, 0) == []


def test_taxi_has_one():
    with hosts.make("Taxi-v4", num_envs=1, backend="serial", wrappers=["action_mask:info"]) as pool:
        assert pool.reset()["action_mask"].shape == (1, 6)


@pytest.mark.parametrize(
    ("make_pool", "message"),
    [
        (lambda: make("info", where="nowhere").reset(), "info of reset: expected action_mask, as the wrapper"),
        (lambda: hosts.make("host_envs:Counter", num_envs=1, wrappers=["action_mask:method"]), "the method action"),
        (lambda: hosts.make("host_envs:Noise", num_envs=1, wrappers=["action_mask:info"]), "that are Discrete or"),
        (lambda: make("mask"), "wrapper='action_mask:mask' needs info or method after the colon"),
    ],
)
def test_mistakes(make_pool, message):
    with mistake(message):
        make_pool()

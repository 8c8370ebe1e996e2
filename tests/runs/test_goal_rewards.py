"""Rewards of other goals are those of the environment as it is trained in: its wrappers, its numbers, its steps."""

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from mistakes import mistake

from rlkit import envs, hosts
from rlkit.envs import probes
from rlkit.envs.wrappers import Wrapper
from rlkit.hosts import goals, registry, validation
from rlkit.hosts.placeholder import HostEnv
from rlkit.hosts.spaces import space, starts
from rlkit.hosts.worker import contract
from rlkit.runs.config.parse import parse
from rlkit.runs.programs.goals import in_jax, with_goal_reward
from rlkit.runs.programs.make import make_program
from rlkit.types import ConfigError


class Plain(gymnasium.Env):
    """A point on a line without a method of rewards; the reward is minus the distance to the goal."""

    goal_space = spaces.Box(-4, 4, (1,), np.float64)

    def __init__(self):
        self.observation_space = spaces.Dict(
            {"achieved_goal": self.goal_space, "desired_goal": self.goal_space, "time": spaces.Box(0, 99, (1,))}
        )
        self.action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.scale = 0, 1.0  # an attribute that only a reset sets
        self.at, self.goal = self.draw(), self.draw()
        return self.obs(), {}

    def draw(self):
        return self.np_random.uniform(-4, 4, 1)

    def obs(self):
        return {"achieved_goal": self.at, "desired_goal": self.goal, "time": np.array([self.time], np.float32)}

    def step(self, action):
        self.at, self.time = self.move(action), self.time + 1
        reward = self.reward(self.at, self.goal, {"bonus": 0.25})
        return self.obs(), float(reward), False, self.time == 5, {}

    def move(self, action):
        return np.clip(self.at + action / 3, -4, 4)

    def reward(self, achieved, desired, info):
        return -self.scale * np.abs(achieved - desired).max(-1)


class Line(Plain):
    """The same with the method."""

    def compute_reward(self, achieved, desired, info):
        return self.reward(achieved, desired, info)


class Bonus(Line):
    def reward(self, achieved, desired, info):
        return super().reward(achieved, desired, info) + info.get("bonus", 0.0)


class NeedsInfo(Line):
    def reward(self, achieved, desired, info):
        return super().reward(achieved, desired, info) + info["bonus"]


class Costly(Line):
    """A reward of more than the goals."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, reward - 0.1 * abs(int(action)), *rest


class Ends(Line):
    """Ends of goals that no step has."""

    def compute_terminated(self, achieved, desired, info):
        return True


class Falls(Line):
    """An end whatever the goal, which `compute_terminated` does not know."""

    def step(self, action):
        obs, reward, _, *rest = super().step(action)
        return obs, reward, self.time == 3, *rest

    def compute_terminated(self, achieved, desired, info):
        return False


class Shifted(gymnasium.Wrapper):
    """Other rewards, with a method of them."""

    def step(self, action):
        obs, _, *rest = self.env.step(action)
        return obs, float(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})), *rest

    def compute_reward(self, achieved, desired, info):
        return -1.0 - np.abs(achieved - desired).max(-1)


class ScaledGoals(gymnasium.ObservationWrapper):
    def observation(self, obs):
        return obs | {name: obs[name] / 10 for name in ("achieved_goal", "desired_goal")}


class Counted(Line):
    """Goals of nested spaces, whose integers do not begin at 0."""

    goal_space = spaces.Dict(
        {"cell": spaces.Discrete(5, start=3), "rest": spaces.Tuple([spaces.MultiDiscrete([4, 4], start=[7, -9])])}
    )

    def draw(self):
        rest = self.np_random.integers(0, 4, 2) + np.array([7, -9])
        return {"cell": 3 + self.np_random.integers(5), "rest": (rest,)}

    def move(self, action):
        return self.draw()

    def reward(self, achieved, desired, info):
        for goal in (achieved, desired):
            assert self.goal_space.contains(goal), goal
        return -float(desired["cell"] * 100 + achieved["rest"][0].sum())


class Cells(Line):
    goal_space = spaces.Discrete(5, start=3)

    def draw(self):
        return 3 + self.np_random.integers(5)

    def move(self, action):
        return int(np.clip(self.at + action, 3, 7))

    def reward(self, achieved, desired, info):
        return -np.abs(achieved - desired) * desired  # the second factor has another value in another numbering


def scaled_reward():
    return gymnasium.wrappers.TransformReward(Line(), lambda reward: reward * 0.1)


def check(env):
    """Compare as a run does before it trains; returns the function and the observations of a reset."""
    with hosts.make(env, num_envs=3, backend="serial") as pool:
        found = goals.make(registry.recipe(env, {}), name="here", seed=0)
        assert found is not None
        validation.check(pool, 0, found.compare)
        return found, pool.reset(0)


@pytest.mark.parametrize(
    "env",
    [Line, Line(), Falls, Counted, Counted(), Cells, Cells(), lambda: Shifted(Line()), Shifted(Plain())],
    ids=["class", "instance", "falls", "nested", "nested instance", "cells", "cells instance", "wrapper", "wrapped"],
)
def test_rewards_of_goals_are_those_of_steps(env):
    found, obs = check(env)
    rewards, ends = found.rewards(obs["achieved_goal"], obs["desired_goal"])
    assert rewards.shape == ends.shape == (3,)
    assert found.batched == isinstance(found.env.unwrapped, Plain) & (not isinstance(found.env.unwrapped, Counted))


def test_the_outermost_method_is_called():
    found, obs = check(lambda: Shifted(Shifted(Line())))
    distance = np.abs(obs["achieved_goal"] - obs["desired_goal"])[:, 0]
    np.testing.assert_allclose(found.rewards(obs["achieved_goal"], obs["desired_goal"])[0], -1 - distance, rtol=1e-6)
    assert goals.make(registry.recipe(Plain, {}), name="plain", seed=0) is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (scaled_reward, ["compute_reward returns -", "whose reward is -0."]),
        (lambda: ScaledGoals(Line()), ["compute_reward returns -0.", "whose reward is -"]),
        (Bonus, ["compute_reward returns", "whose reward is"]),
        (Costly, ["compute_reward returns", "whose reward is"]),
        (NeedsInfo, ["compute_reward", "raised KeyError: 'bonus'"]),
        (Ends, ["compute_terminated"]),
    ],
    ids=["scaled reward", "scaled goals", "bonus", "costly", "info", "ends"],
)
def test_other_rewards_than_those_of_steps_are_refused(env, words):
    with mistake(*words, "hindsight", "goal_reward"):
        check(env)


def test_a_run_compares_before_it_trains():
    config = {"agent": "dqn", "env": f"{__name__}:Line", "replay": "hindsight", "backend": "serial", "capacity": 64}
    config |= {"num_envs": 2, "batch_size": 8, "learning_starts": 8, "total_steps": 64, "hidden_sizes": [8]}
    program = make_program(parse(config | {"wrappers": [f"{__name__}:Shifted"]}))
    program.check()
    program.close()
    program = make_program(parse(config | {"wrappers": [f"{__name__}:ScaledGoals"]}))
    with pytest.raises(ConfigError, match="compute_reward returns"):
        program.check()
    program.close()


def test_a_function_of_the_users_gets_the_numbers_of_the_environment():
    tree = contract.describe(Counted().observation_space)
    env = HostEnv("here", space(tree), space(contract.describe(spaces.Discrete(3))), starts(tree))
    seen = []
    function = lambda achieved, desired: seen.append((achieved, desired))  # noqa: E731
    config = parse({"agent": "dqn", "env": "Probe-BitFlip", "replay": "hindsight", "goal_reward": function})

    class Environments:
        pass

    Environments.env = env
    goal = {"cell": jnp.array(0), "rest": (jnp.array([1, 2]),)}
    with_goal_reward(config, Environments).agent.goal_reward(goal, goal)
    for got in seen[0]:
        assert int(got["cell"]) == 3
        np.testing.assert_array_equal(got["rest"][0], [8, -7])


@dataclass(frozen=True)
class Tenth(Wrapper):
    def step(self, key, state, action, params):
        obs, state, reward, *rest = self.env.step(key, state, action, params)
        return obs, state, reward * 0.1, *rest


@dataclass(frozen=True)
class TenthWithMethod(Tenth):
    def compute_reward(self, achieved, desired, params):
        reward, terminated = self.env.compute_reward(achieved, desired, params)
        return reward * 0.1, terminated


class Unknown(probes.BitFlip):
    def compute_reward(self, achieved_goal, desired_goal, params=()):
        return super().compute_reward(achieved_goal, desired_goal)[0] * params["factor"], False


def test_rewards_of_goals_in_jax_are_those_of_steps():
    env, params = envs.make("Probe-BitFlip", length=3)
    key = jax.random.key(0)
    for good in (env, TenthWithMethod(env)):
        envs.check(good, params, key, goal_reward=in_jax(good, params))
    with pytest.raises(ConfigError, match=r"compute_reward returns -1 .* whose reward is -0.1;"):
        envs.check(Tenth(env), params, key, goal_reward=in_jax(Tenth(env), params))
    with pytest.raises(ConfigError, match=r"calls compute_reward .* raised TypeError"):
        envs.check(env, params, key, goal_reward=in_jax(Unknown(3), params))


def test_a_run_in_jax_compares_before_it_trains():
    config = {"agent": "dqn", "env": Tenth(envs.make("Probe-BitFlip")[0]), "replay": "hindsight", "num_envs": 4}
    program = make_program(parse(config | {"total_steps": 64, "capacity": 64, "batch_size": 8, "hidden_sizes": [8]}))
    with pytest.raises(ConfigError, match="compute_reward returns -1 "):
        program.check()

"""Environments of several players with PettingZoo's parallel interface, without that package."""

import contextlib
from pathlib import Path
from typing import ClassVar

import numpy as np
from gymnasium import spaces

AGENTS = ("red", 7, "tail_9")  # of any kind, and of any names


class Meeting:
    """Three agents on numbered fields; each is paid its action plus its field, and sees field and time.

    Agent 7 leaves after 2 steps, terminated; "tail_9" comes after 1 step; the others are truncated after `length`
    steps. Fields are drawn from the seed.
    """

    possible_agents = AGENTS
    shared_reward = True

    def __init__(self, length=4):
        self.length, self.rng, self.closed = length, np.random.default_rng(0), False
        self.log = []  # of the actions of each step

    def observation_space(self, agent):
        return spaces.Box(0, 1000, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng = self.rng if seed is None else np.random.default_rng(seed)
        self.fields = dict(zip(self.possible_agents, self.rng.integers(1, 900, 3).tolist(), strict=True))
        self.time, self.agents = 0, [self.possible_agents[0], 7]
        return self._see(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        acting = list(self.agents)
        assert set(actions) == set(acting)
        self.log.append(dict(actions))
        self.time += 1
        terminations = {agent: agent == 7 and self.time == 2 for agent in acting}
        truncations = dict.fromkeys(acting, self.time == self.length)
        self.agents = [agent for agent in acting if not terminations[agent] and not truncations[agent]]
        if self.time == 1:
            self.agents.append("tail_9")
        rewards = {agent: float(actions[agent] + self.fields[agent]) for agent in acting}
        infos = {agent: {"success": agent == "red" or (agent == 7 and self.time == 2)} for agent in acting}
        return self._see({*acting, *self.agents}), rewards, terminations, truncations, infos

    def close(self):
        self.closed = True

    def _see(self, agents):
        return {agent: np.array([self.fields[agent], self.time], np.float32) for agent in agents}


class Unlike:
    """Two agents with vectors of 3 and 1, 2 and 4 actions from 1 and from 5, and masks in infos of the second.

    The legal action of "b" is the step modulo 4. Both end after 3 steps by a terminal state.
    """

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (3,), np.float32) if agent == "a" else spaces.Box(-2, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2, start=1) if agent == "a" else spaces.Discrete(4, start=5)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, ["a", "b"]
        return self._see(), self._infos()

    def step(self, actions):
        assert actions["a"] in (1, 2)
        assert actions["b"] == 5 + self.time % 4
        self.time += 1
        over = self.time == 3
        flags = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return self._see(), {"a": 1, "b": np.float32(2)}, *flags, self._infos()

    def _see(self):
        return {"a": np.full(3, 0.5, np.float32), "b": np.full(1, 0.25, np.float32)}

    def _infos(self):
        return {"a": {}, "b": {"action_mask": np.arange(4) == self.time % 4}}


class Signal:
    """Two agents that never leave `agents`; each is paid 1 for the action that it sees. An episode is 5 steps."""

    possible_agents = ("left", "right")

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent):
        return spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.rng = self.rng if seed is None else np.random.default_rng(seed)
        self.time, self.agents = 0, list(self.possible_agents)
        return self._see(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.time += 1
        rewards = {agent: float(actions[agent] == self.shown[agent]) for agent in self.agents}
        flags = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, self.time == 5)
        return self._see(), rewards, *flags, {agent: {} for agent in self.agents}

    def _see(self):
        self.shown = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}
        return {agent: np.eye(2, dtype=np.float32)[shown] for agent, shown in self.shown.items()}


class Lingering:
    """Agents "a" and "b" with actions of numbers that stay in `agents`; "a" has its flag from step 1 on, but not at 3.

    At step 5 both have it.
    """

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Box(1, 9, (1,), np.float64)

    def action_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.time, self.agents = 0, ["a", "b"]
        return self._see(), {}

    def step(self, actions):
        assert {agent: action.shape for agent, action in actions.items()} == {"a": (2,), "b": (2,)}
        self.time += 1
        flags = {"a": self.time != 3, "b": self.time == 5}
        return self._see(), {"a": 1, "b": 1}, flags, {"a": False, "b": False}, {}

    def _see(self):
        return {agent: np.array([self.time + 2], np.float64) for agent in self.agents}


class FailsOnce(Signal):
    """`Signal` that raises at its second step, unless there is the file `path`, which it makes then."""

    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def step(self, actions):
        if self.time == 1:
            with contextlib.suppress(FileExistsError):
                self.path.touch(exist_ok=False)  # of two workers at the same time, one makes it
                raise RuntimeError("once")
        return super().step(actions)


class Drawn(Signal):
    """`Signal` with pictures, each of another gray."""

    metadata: ClassVar[dict] = {"render_fps": 5}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((8, 8, 3), 40 * self.time, np.uint8)


class Doubled:
    """A wrapper with PettingZoo's interface, which doubles rewards."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def step(self, actions):
        obs, rewards, *rest = self.env.step(actions)
        return obs, {agent: 2 * reward for agent, reward in rewards.items()}, *rest


class DoubledToLearn(Doubled):
    """That for learning alone."""

    rlkit_for_learning = True


class BriefToLearn(Doubled):
    """A wrapper that truncates the learner's episodes after 2 steps, while the environment's go on."""

    rlkit_for_learning = True
    over = True

    def reset(self, **arguments):
        if self.over:
            self.last = self.env.reset(**arguments)
        self.over, self.time, self.agents = False, 0, list(self.env.agents)
        return self.last

    def step(self, actions):
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        self.time, self.over = self.time + 1, any(truncations.values())
        self.last = obs, {agent: {} for agent in self.agents}
        truncations = dict.fromkeys(self.agents, self.over or self.time == 2)
        return obs, rewards, terminations, truncations, infos


def make(**kwargs):
    """Make `Signal`."""
    return Signal(**kwargs)


make.shared_reward = True

"""Tiny environments for the tests of rlkit.hosts. Worker processes import this file, so it imports no JAX."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Counter(gymnasium.Env):
    """Counts episodes and steps: obs [episode, step, seed]; episode k has `length + k * later` steps."""

    def __init__(self, length=3, ends="truncated", later=0):
        self.observation_space = spaces.Box(0, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(3, start=1)
        self.length, self.ends, self.later = length, ends, later
        self.episode, self.seed = -1, 0

    def _obs(self):
        return np.array([self.episode, self.time, self.seed], np.float64)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seed, self.episode = seed % 1000, -1
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        assert action in (1, 2, 3), action
        self.time += 1
        done = self.time >= self.length + self.later * self.episode
        flags = (done, False) if self.ends == "terminated" else (False, done)
        return self._obs(), float(self.time), *flags, {}


_shared = Counter()


def same_counter():
    """Return the same Counter in each call."""
    return _shared


def same_counter_wrapped():
    """Wrap the same Counter anew in each call."""
    return gymnasium.wrappers.TimeLimit(_shared, 5)


class Noise(gymnasium.Env):
    """Random observations, rewards and episode ends, which depend on the seed alone."""

    observation_space = spaces.Dict({"x": spaces.Box(-10, 10, (2,), np.float32), "kind": spaces.Discrete(5, start=-2)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def _obs(self):
        return {"kind": int(self.np_random.integers(-2, 3)), "x": self.np_random.uniform(-1, 1, 2).astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        draw = self.np_random.random()
        return self._obs(), float(draw + action[0]), bool(draw < 0.1), bool(draw > 0.9), {}


class OwnGenerator(gymnasium.Env):
    """First observations from a generator of its own, which ignores the seed of reset; `kinds` is their number."""

    action_space = spaces.Discrete(2)

    def __init__(self, state=None, kinds=2**31 - 1):
        self.observation_space = spaces.Discrete(kinds)
        self.generator = np.random.default_rng(state)

    def reset(self, *, seed=None, options=None):
        return int(self.generator.integers(self.observation_space.n)), {}

    def step(self, action):
        return 0, 0.0, False, False, {}


class Surroundings(gymnasium.Env):
    """Observes three flags: JAX is restricted to the CPU, JAX is imported, Ctrl-C is ignored."""

    observation_space = spaces.MultiDiscrete([2, 2, 2])
    action_space = spaces.MultiBinary(2)

    def reset(self, *, seed=None, options=None):
        cpu = os.environ.get("JAX_PLATFORMS") == "cpu"
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return np.array([cpu, "jax" in sys.modules, ignored], np.int64), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


class Breaks(Counter):
    """A Counter that fails in the constructor, in its second reset, or in the step at time 2; `how` is the kind.

    Where `once` is the path of a file, only the environment that creates it fails.
    """

    def __init__(self, how="raise", where="step", once=None, length=5):
        self.how, self.where, self.once = how, where, once
        if where == "constructor":
            self._break()
        super().__init__(length)

    def _break(self):
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        if self.how == "raise":
            raise RuntimeError("broken on purpose")
        if self.how == "exit":
            os._exit(3)
        if self.how == "sys.exit":
            sys.exit(3)
        while self.how == "loop":
            pass
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV}[self.how])

    def reset(self, *, seed=None, options=None):
        if self.where == "reset" and self.episode >= 0:
            self._break()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.where == "step" and self.time == 2:
            self._break()
        return super().step(action)


class Broken(Counter):
    """A Counter that raises the same exception in its step at time 2 and, while the file `path` exists, in any step."""

    def __init__(self, path):
        super().__init__(length=5)
        self.path = Path(path)

    def step(self, action):
        if self.time == 2:
            self.path.touch()
        if self.path.exists():
            raise RuntimeError("the simulator is broken")
        return super().step(action)


class Engine(Counter):
    """A Counter that starts a process of its own."""

    def __init__(self):
        super().__init__()
        self.engine = subprocess.Popen(["sleep", "1000"])


class Picture(Counter):
    """A Counter that renders a gray image, brighter with time."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        super().__init__(length=4)
        self.render_mode = render_mode

    def render(self):
        if self.render_mode != "rgb_array":
            return None
        return np.full((20, 30, 3), 50 * self.time, np.uint8)


class Listed(Picture):
    """A Picture that takes a list of lists."""

    def __init__(self, sizes, render_mode=None):
        super().__init__(render_mode)
        if not isinstance(sizes, list) or not all(isinstance(size, list) for size in sizes):
            raise TypeError(f"sizes={sizes!r} must be a list of lists")


class Wrong(gymnasium.Env):
    """An environment that violates the contract; `how` is the kind of violation."""

    def __init__(self, how):
        self.how, self.time = how, 0
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        if how == "no space":
            del self.observation_space
        if how == "text space":
            self.observation_space = spaces.Text(5)

    def _obs(self):
        obs = np.zeros(2, np.float32)
        late = self.time >= 3
        return {
            "shape": np.zeros(3, np.float32),
            "dtype": np.zeros(2, np.float64),
            "list": [0.0, 0.0],
            "late shape": np.zeros(2 + late, np.float32),
            "late dtype": np.zeros(2, np.float64 if late else np.float32),
            "none": None,
            "nan": np.full(2, np.nan if late else 0.0, np.float32),
            "bounds": np.full(2, 7.0 if late else 0.0, np.float32),
        }.get(self.how, obs)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self._obs() if self.how == "reset" else (self._obs(), {})

    def step(self, action):
        self.time += 1
        reward = {
            "reward": np.zeros(1),
            "reward text": "1",
            "reward nan": float("nan"),
            "late reward nan": float("nan") if self.time == 8 else 1.0,
        }.get(self.how, 1.0)
        terminated = 0 if self.how == "flag" else False
        result = self._obs(), reward, terminated, self.time >= 10, {}
        return result[:4] if self.how == "four values" else result


class Large(gymnasium.Env):
    """Observes `first` after a reset, and `second` after the only step of its episode."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, first, second):
        self.observation_space, self.first, self.second = space, first, second

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        return self.second, 0.0, True, False, {}


class Odd(gymnasium.Env):
    """A class whose instances are not Gymnasium environments."""

    def __new__(cls):
        return object()


def Vector():
    """A vector environment, of which a pool makes no copies."""
    return gymnasium.vector.SyncVectorEnv([Counter] * 2)


class Target(gymnasium.Env):
    """Episodes of one step; the reward is 1 for the action that the observation marks, one-hot."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, sleep=0.0):
        self.sleep = sleep

    def _obs(self):
        self.answer = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.answer]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action):
        time.sleep(self.sleep)
        reward = float(action == self.answer)
        return self._obs(), reward, True, False, {}


class Masked(gymnasium.Env):
    """Refuses illegal actions; the mask changes in each step. `kind` is that of the action space.

    From step `closed` on, the last part of the mask permits nothing.
    """

    def __init__(self, kind="discrete", entries=None, closed=None):
        self.closed, self.time = closed, 0
        self.nvec = {"discrete": [4], "multi_discrete": [3, 4]}[kind]
        self.action_space = spaces.Discrete(4) if kind == "discrete" else spaces.MultiDiscrete(self.nvec)
        entries = sum(self.nvec) if entries is None else entries
        mask = spaces.MultiBinary(entries)
        self.observation_space = spaces.Dict({"action_mask": mask, "obs": spaces.Box(-1, 1, (1,), np.float32)})

    def _obs(self):
        self.legal = self.np_random.integers(0, 2, self.observation_space["action_mask"].shape).astype(np.int8)
        for first in np.cumsum([0, *self.nvec[:-1]]):
            self.legal[first] |= not self.legal[first : first + 3].any()
        if self.closed is not None and self.time >= self.closed:
            self.legal[-self.nvec[-1] :] = 0
        return {"action_mask": self.legal, "obs": np.zeros(1, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        chosen = np.cumsum([0, *self.nvec[:-1]]) + action
        assert self.legal[chosen].all(), f"illegal action {action}"
        self.time += 1
        return self._obs(), 1.0, False, self.time == 5, {}


class Hybrid(gymnasium.Env):
    """`Probe-HybridAction` outside of JAX; `kind` is that of the action space, and the sides are 1 and 2."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, kind="dict"):
        amount, side = spaces.Box(-2, 2, (1,), np.float64), spaces.Discrete(2, start=1)
        self.action_space = spaces.Dict(amount=amount, side=side) if kind == "dict" else spaces.Tuple((amount, side))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.cue, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        amount, side = action.values() if isinstance(action, dict) else action
        reward = 0.5 * ((side == 2) == (self.cue[0] > 0)) + 0.5 * (1 - (amount[0] - self.cue[0]) ** 2)
        return self.cue, float(reward), True, False, {}


class Writes(gymnasium.Env):
    """An environment that adds actions up and then writes into them, and returns its reward in an array of its own."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.x, self.reward = np.zeros(1, np.float32), np.zeros(())
        return self.x, {}

    def step(self, action):
        self.x += action
        self.reward[...] = self.x[0]
        action *= 2
        return self.x, self.reward, False, False, {}


def forgets_return(env=None):
    """A wrapper, or a function that makes an environment, without its `return`."""


class Global(gymnasium.Env):
    """Draws from the global generators of Python and NumPy."""

    observation_space = spaces.Box(0, 1, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.array([random.random(), np.random.random()]), {}  # noqa: NPY002

    def step(self, action):
        return np.array([random.random(), np.random.random()]), 0.0, False, False, {}  # noqa: NPY002


class Clock(gymnasium.Env):
    """Observations of an offset and of the steps so far, times a unit."""

    def __init__(self, offset=0.0, unit=1.0, dtype="float64", nested=False):
        self.offset, self.unit, self.dtype, self.nested = offset, unit, np.dtype(dtype), nested
        low, high = (-np.inf, np.inf) if self.dtype.kind == "f" else (0, 2**31 - 1)
        box = spaces.Box(low, high, (2,), self.dtype.type)
        self.observation_space = spaces.Dict({"time": box, "kind": spaces.Discrete(2)}) if nested else box
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        x = np.array([0, self.offset + self.unit * self.steps], self.dtype)
        return {"time": x, "kind": 0} if self.nested else x

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        return self._obs(), 0.0, self.steps == 12, False, {}

"""Some scalar environments, stepped one after the other: a worker's work, be it a process, a thread or nobody else."""

import random
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker import block, contract
from rlkit.hosts.worker.contract import Tree, Violation

STARTING, IMPORTING, MAKING, READY, STEPPING, RESETTING = range(6)
DOING = ("start", "import", "the constructor", "waiting", "step", "reset")


class Fault(NamedTuple):
    """What went wrong in a worker; plain data."""

    kind: str  # raised, contract, missing, unknown, silent, died
    env: int  # which environment, of all
    doing: int  # what it was doing, as DOING names it
    text: str


class Failed(Exception):
    """Carries a Fault out of a group."""

    def __init__(self, fault: Fault):
        super().__init__(fault.text)
        self.fault = fault


class Ticket:
    """What a group works under; nobody waits for one that was abandoned, and others have its place in the arrays."""

    abandoned = False

    def check(self) -> None:
        if self.abandoned:
            raise RuntimeError("abandoned: it was silent for too long")


class Group:
    """Environments first ... first + count - 1 of a pool.

    Args:
      make: makes one environment.
      first, count: which they are.
      note: called as (stage, environment) before each call of an environment's code, so that somebody else can tell
        where it hangs.
      ticket: abandoned by somebody else where it hangs; nothing is written from then on.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        first: int,
        count: int,
        note: Callable[[int, int], None],
        ticket: Ticket | None = None,
    ):
        self.first, self.note, self.ticket = first, note, ticket or Ticket()
        self.envs: list[Any] = []
        self.where = (MAKING, first)
        for index in range(count):
            env = self._call(MAKING, index, make)
            self.envs.append(env)
            self._call(MAKING, index, lambda env=env: _is_an_environment(env))
            spaces = self._call(MAKING, index, lambda env=env: _spaces(env))
            if index == 0:
                self.obs, self.action = spaces
            elif not (contract.same(self.obs, spaces[0]) and contract.same(self.action, spaces[1])):
                text = f"expected the spaces of environment {first}, got {contract.says(spaces[0])}"
                raise Failed(Fault("contract", first + index, MAKING, f"observation_space or action_space: {text}"))

    def _call(self, stage: int, index: int, function: Callable[[], Any]) -> Any:
        self.note(stage, self.first + index)
        try:
            made = function()
            self.ticket.check()
            return made
        except Exception as error:
            raise Failed(fault(error, self.first + index, stage)) from error

    def attach(self, views: block.Views) -> None:
        """Work on these arrays from now on."""
        first, count = self.first, len(self.envs)
        obs, final, action = (block.rows(x, first, count) for x in (views.obs, views.final, views.action))
        self._write_obs = contract.writer(self.obs, obs)
        self._write_final = contract.writer(self.obs, final)
        self._read_actions = contract.reader(self.action, action)
        self._seed = views.seed[first : first + count]
        # A memoryview takes a Python number in half of the time that an array needs.
        self._reward = _plain(views.reward)[first : first + count]
        self._terminated = _plain(views.terminated)[first : first + count]
        self._truncated = _plain(views.truncated)[first : first + count]

    def reset(self, *, seed_globals: bool = False) -> None:
        """Begin new episodes in all environments, with the seeds that the arrays hold.

        `seed_globals` seeds Python's and NumPy's generators, too, for environments that draw from those.
        """
        if seed_globals:
            random.seed(int(self._seed[0]))
            np.random.seed(int(self._seed[0]) % 2**32)  # noqa: NPY002 the one that such environments use
        for index, env in enumerate(self.envs):
            self.note(RESETTING, self.first + index)
            try:
                obs = _observation(env.reset(seed=int(self._seed[index])))
                self.ticket.check()
                self._write_obs("obs of reset", index, obs)
            except Exception as error:
                raise Failed(fault(error, self.first + index, RESETTING)) from error

    def step(self) -> None:
        """One step of each environment; one whose episode ends begins the next at once."""
        first, note, write, ticket = self.first, self.note, self._write_obs, self.ticket
        rewards, terminations, truncations = self._reward, self._terminated, self._truncated
        stage = STEPPING
        index = 0
        try:
            for index, (env, action) in enumerate(zip(self.envs, self._read_actions(), strict=True)):
                note(STEPPING, first + index)
                result = env.step(action)
                ticket.check()
                if type(result) is not tuple or len(result) != 5:
                    raise Violation("step", "obs, reward, terminated, truncated, info", _tuple(result))
                obs, reward, terminated, truncated, _ = result
                if type(reward) is not float or type(terminated) is not bool or type(truncated) is not bool:
                    reward = contract.check_scalars(reward, terminated, truncated)
                    terminated, truncated = bool(terminated), bool(truncated)
                rewards[index], terminations[index], truncations[index] = reward, terminated, truncated
                if terminated or truncated:
                    self._write_final("obs of step", index, obs)
                    stage = RESETTING
                    note(RESETTING, first + index)
                    obs = _observation(env.reset())
                    ticket.check()
                    write("obs of reset", index, obs)
                    stage = STEPPING
                else:
                    write("obs of step", index, obs)
        except Exception as error:
            raise Failed(fault(error, first + index, stage)) from error

    def close(self) -> None:
        for env in self.envs:
            try:
                env.close()
            except Exception:
                continue  # it is of no use any more, and the others are to be closed, too
        self.envs = []


def fault(error: Exception, env: int, doing: int) -> Fault:
    """What an exception says of an environment, in one line."""
    if isinstance(error, Violation):
        return Fault("contract", env, doing, str(error))
    kind = {"DependencyNotInstalled": "missing"}.get(type(error).__name__, "raised")
    if doing == MAKING and type(error).__module__ == "gymnasium.error" and kind == "raised":
        kind = "unknown"
    said = " ".join(str(error).split())[:300]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/rlkit/hosts/" not in frame.filename]
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames and kind == "raised" else ""
    return Fault(kind, env, doing, f"{type(error).__name__}: {said}{place}")


def _plain(array: Any) -> Any:
    return memoryview(array)


def _is_an_environment(env: Any) -> None:
    for name in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, name):
            raise Violation("the constructor", f"a Gymnasium environment, which has {name}", type(env).__name__)


def _spaces(env: Any) -> tuple[Tree, Tree]:
    return (
        contract.describe(env.observation_space),
        contract.describe(env.action_space, field="action_space"),
    )


def _observation(result: Any) -> Any:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise Violation("reset", "obs, info", _tuple(result))
    return result[0]


def _tuple(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__

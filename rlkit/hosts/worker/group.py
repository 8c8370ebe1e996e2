"""Groups of single environments that a worker (a process or the caller itself) steps one after another."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker import contract, identity, own_rewards, shared_arrays, wrappers
from rlkit.hosts.worker.contract import SpaceTree, Violation
from rlkit.names import MASK_SOURCES, place, success_name

STARTING, IMPORTING, MAKING, READY, STEPPING, RESETTING = range(6)
STAGE_NAMES = ("start", "import", "the constructor", "waiting", "step", "reset")


class Fault(NamedTuple):
    """A failure in a worker; plain data."""

    kind: str  # raised, contract, missing, unknown, timeout or died
    env: int  # index of the environment in the pool
    stage: int  # index into STAGE_NAMES
    text: str


class Failed(Exception):
    """An exception with a Fault, raised by the methods of a group."""

    def __init__(self, fault: Fault):
        super().__init__(fault.text)
        self.fault = fault


class Group:
    """Environments first ... first + count - 1 of a pool.

    Args:
      make: makes one environment.
      first, count: the environments of the pool that belong to the group.
      report: called as (stage, environment) before each call of an environment's code, so that the pool can name the
        call that hangs.
    """

    def __init__(self, make: Callable[[], Any], first: int, count: int, report: Callable[[int, int], None]):
        self.first, self.report = first, report
        self.envs: list[Any] = []
        self.recorders: list[own_rewards.Recorder | None] = []
        self.claimed: list[Any] = []  # objects that no other environment of this process may be
        try:
            for index in range(count):
                self._make(index, make)
        except BaseException:
            self.close()
            raise

    def _make(self, index: int, make: Callable[[], Any]) -> None:
        """Make one environment, and check its interface and its spaces."""
        env = self._call(MAKING, index, make)
        self._call(MAKING, index, lambda: _check_interface(env))
        self._call(MAKING, index, lambda: self.claimed.extend(identity.claim(env)))
        self.envs.append(env)
        spaces = self._call(MAKING, index, lambda: _spaces(env))
        if index == 0:
            self.obs, self.action = spaces
        elif not (contract.equal(self.obs, spaces[0]) and contract.equal(self.action, spaces[1])):
            text = f"expected the spaces of environment {self.first}, got {contract.dtypes_and_shapes(spaces[0])}"
            raise Failed(Fault("contract", self.first + index, MAKING, f"observation_space or action_space: {text}"))
        self.recorders.append(self._call(MAKING, index, lambda: own_rewards.record(env)))

    def _call(self, stage: int, index: int, function: Callable[[], Any]) -> Any:
        self.report(stage, self.first + index)
        try:
            return function()
        except (Exception, SystemExit) as error:  # sys.exit() of an environment
            raise Failed(fault(error, self.first + index, stage)) from error

    def attach(self, views: shared_arrays.Views) -> None:
        """Read actions from and write results to these arrays from now on."""
        first, count = self.first, len(self.envs)
        obs, final, action = (shared_arrays.rows(x, first, count) for x in (views.obs, views.final, views.action))
        self._write_obs = contract.make_writer(self.obs, obs)
        self._write_final = contract.make_writer(self.obs, final)
        self._read_actions = contract.make_reader(self.action, action)
        self._record = contract.make_recorder(self.obs, shared_arrays.rows(views.native, first, count))
        self._inspect = views.inspect[first : first + count]
        self._seed = views.seed[first : first + count]
        # Assigning a Python number to a memoryview takes half as long as to an array.
        self._reward = _memoryview(views.reward)[first : first + count]
        self._own_reward = _memoryview(views.own_reward)[first : first + count]
        self._own_done = _memoryview(views.own_done)[first : first + count]
        self._success = _memoryview(views.success)[first : first + count]
        self._terminated = _memoryview(views.terminated)[first : first + count]
        self._truncated = _memoryview(views.truncated)[first : first + count]

    def reset(self, *, seed_globals: bool = False) -> None:
        """Begin new episodes in all environments, with the seeds in the shared arrays.

        `seed_globals` seeds the global generators of Python and NumPy as well, for environments that draw from them.
        """
        if seed_globals:
            random.seed(int(self._seed[0]))
            np.random.seed(int(self._seed[0]) % 2**32)  # noqa: NPY002 the generator that such environments use
        for index, env in enumerate(self.envs):
            self.report(RESETTING, self.first + index)
            try:
                result = env.reset(seed=int(self._seed[index]))
                obs = _observation(result)
                self._write_obs("obs of reset", index, obs)
                if self._inspect[index]:
                    self._record(index, obs)
                    if (source := wrappers.mask_source(env, result[1])) is not None:
                        self._inspect[index] = 2 + MASK_SOURCES.index(source)
                if (recorder := self.recorders[index]) is not None:
                    recorder.take_reward()
                    recorder.take_reset()
            except (Exception, SystemExit) as error:
                raise Failed(fault(error, self.first + index, RESETTING)) from error

    def step(self) -> None:
        """Take one step in each environment; where an episode ends, the next one begins at once."""
        first, report, write = self.first, self.report, self._write_obs
        rewards, terminations, truncations = self._reward, self._terminated, self._truncated
        own, recorders = self._own_reward, self.recorders
        record = self._record if self._inspect[0] else None
        stage = STEPPING
        index = 0
        try:
            for index, (env, action) in enumerate(zip(self.envs, self._read_actions(), strict=True)):
                report(STEPPING, first + index)
                result = env.step(action)
                if type(result) is not tuple or len(result) != 5:
                    raise Violation("step", "obs, reward, terminated, truncated, info", _describe(result))
                obs, reward, terminated, truncated, info = result
                if type(reward) is not float or type(terminated) is not bool or type(truncated) is not bool:
                    reward = contract.check_scalars(reward, terminated, truncated)
                    terminated, truncated = bool(terminated), bool(truncated)
                rewards[index], terminations[index], truncations[index] = reward, terminated, truncated
                recorder = recorders[index]
                own[index] = reward if recorder is None else recorder.take_reward()
                if terminated or truncated:
                    self._write_final("obs of step", index, obs)
                    self._success[index] = _success(info)
                    stage = RESETTING
                    report(RESETTING, first + index)
                    obs = _observation(env.reset())
                    self._own_done[index] = recorder is None or recorder.take_reset()
                    write("obs of reset", index, obs)
                    stage = STEPPING
                else:
                    write("obs of step", index, obs)
                if record is not None:
                    record(index, obs)
        except (Exception, SystemExit) as error:
            raise Failed(fault(error, first + index, stage)) from error

    def close(self) -> None:
        """Close the environments; their errors are ignored."""
        for env in self.envs:
            try:
                env.close()
            except Exception:
                continue  # the others have to be closed as well
        identity.release(self.claimed)
        self.envs, self.claimed = [], []


def fault(error: BaseException, env: int, stage: int) -> Fault:
    """Convert an exception of an environment to a Fault, whose text is one line."""
    if isinstance(error, Violation):
        return Fault("contract", env, stage, str(error))
    if type(error).__name__ == "UnknownName":
        return Fault("unknown", env, stage, str(error))
    kind = {"DependencyNotInstalled": "missing"}.get(type(error).__name__, "raised")
    if stage == MAKING and type(error).__module__ == "gymnasium.error" and kind == "raised":
        kind = "unknown"
    message = " ".join(str(error).split())[:300]
    where = (place(error) or place(error, libraries=True)) if kind == "raised" else ""
    return Fault(kind, env, stage, f"{type(error).__name__}: {message}{where}")


def _memoryview(array: Any) -> Any:
    return memoryview(array)


def _check_interface(env: Any) -> None:
    for name in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, name):
            raise Violation("the constructor", f"a Gymnasium environment, which has {name}", type(env).__name__)
    if hasattr(env, "single_observation_space"):
        got = f"{type(env).__name__}, a vector of them; give the class of one, or use hosts.from_vector in Python"
        raise Violation("the constructor", "one Gymnasium environment", got)


def _spaces(env: Any) -> tuple[SpaceTree, SpaceTree]:
    return (
        contract.describe(env.observation_space),
        contract.describe(env.action_space, field="action_space"),
    )


def _observation(result: Any) -> Any:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise Violation("reset", "obs, info", _describe(result))
    return result[0]


def _success(info: Any) -> float:
    """1 where the info of an episode's last step says that it was a success, else 0; NaN where it does not say."""
    success = info.get(success_name(info)) if isinstance(info, dict) else None
    is_flag = isinstance(success, bool | int | float | np.generic | np.ndarray) and np.size(success) == 1
    return float(bool(success)) if is_flag else np.nan


def _describe(result: Any) -> str:
    return f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__

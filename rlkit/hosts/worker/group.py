"""Groups of single environments that a worker (a process or the caller itself) steps one after another."""

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlkit.hosts.worker import contract, identity, own_rewards, players, shared_arrays, wrappers
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


class Facts(NamedTuple):
    """Facts about the environments of a pool, which are equal for all of them; plain data."""

    obs: SpaceTree  # of one player
    action: SpaceTree  # of one player
    num_players: int = 1  # P
    shared_reward: bool = False  # true where the players are a team

    def equals(self, other: "Facts") -> bool:
        """Return true where both are of equal spaces and numbers."""
        spaces = contract.equal(self.obs, other.obs) and contract.equal(self.action, other.action)
        return spaces and self[2:] == other[2:]

    def __str__(self) -> str:
        several = f" of {self.num_players} players" if self.num_players > 1 else ""
        return f"{contract.dtypes_and_shapes(self.obs)}{several}"


class Failed(Exception):
    """An exception with a Fault, raised by the methods of a group."""

    def __init__(self, fault: Fault):
        super().__init__(fault.text)
        self.fault = fault


def shares(num_envs: int, workers: int, num_players: int = 1) -> list[tuple[int, int]]:
    """Divide the environments of a pool evenly: (first, count) for each worker that has any.

    An environment of P players counts as P, which are not divided; where P does not divide `num_envs`, none has any.
    """
    worlds = num_envs // num_players if num_envs % num_players == 0 else 0
    workers = min(workers, worlds)
    ends = [num_players * (worlds * worker // workers) for worker in range(workers + 1)] if workers else [0]
    return [(first, last - first) for first, last in itertools.pairwise(ends)]


class Group:
    """The environments of one of the workers of a pool, first ... first + count - 1; the players of one are adjacent.

    The first one is made to know the number of its players. A group without any, in a pool of fewer worlds than
    workers, closes it again.

    Args:
      make: makes one environment.
      num_envs: N, of the pool; players count.
      workers: number of workers among which these are divided.
      number: of this worker.
      report: called as (stage, environment) before each call of an environment's code, so that the pool can name the
        call that hangs.
    """

    def __init__(
        self, make: Callable[[], Any], num_envs: int, workers: int, number: int, report: Callable[[int, int], None]
    ):
        self.report = report
        self.first = num_envs * number // workers
        self.envs: list[Any] = []
        self.recorders: list[own_rewards.Recorder | None] = []
        self.claimed: list[Any] = []  # objects that no other environment of this process may be
        self.facts: Facts | None = None
        self.num_players = 1
        try:
            self._make(0, make)
            share = shares(num_envs, workers, self.num_players)[number : number + 1]
            self.first, count = share[0] if share else (self.first, 0)
            if count == 0:
                self.close()
            for index in range(self.num_players, count, self.num_players):
                self._make(index, make)
        except BaseException:
            self.close()
            raise

    def _make(self, index: int, make: Callable[[], Any]) -> None:
        """Make one environment, and check its interface and its spaces."""
        env = self._call(MAKING, index, make)
        if players.is_world(env):
            made, shared = env, getattr(make, "shared_reward", False)
            env = self._call(MAKING, index, lambda: players.World(made, shared_reward=shared))
        self._call(MAKING, index, lambda: _check_interface(env))
        self._call(MAKING, index, lambda: self.claimed.extend(identity.claim(env)))
        self.envs.append(env)
        facts = self._call(MAKING, index, lambda: _facts(env))
        if self.facts is None:
            self.facts, self.num_players = facts, facts.num_players
            self.in_worlds = isinstance(env, players.World)
        elif not self.facts.equals(facts):
            text = f"expected the spaces of environment {self.first}, {self.facts}, got {facts}"
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
        assert self.facts is not None
        first, count = self.first, len(self.envs) * self.num_players
        obs, final, action = (shared_arrays.rows(x, first, count) for x in (views.obs, views.final, views.action))
        self._write_obs = contract.make_writer(self.facts.obs, obs)
        self._write_final = contract.make_writer(self.facts.obs, final)
        self._read_actions = contract.make_reader(self.facts.action, action)
        self._record = contract.make_recorder(self.facts.obs, shared_arrays.rows(views.native, first, count))
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
        if not self.envs:
            return
        if seed_globals:
            random.seed(int(self._seed[0]))
            np.random.seed(int(self._seed[0]) % 2**32)  # noqa: NPY002 the generator that such environments use
        for number, (env, recorder) in enumerate(zip(self.envs, self.recorders, strict=True)):
            index = number * self.num_players
            self.report(RESETTING, self.first + index)
            try:
                seed = int(self._seed[index])
                if self.in_worlds:
                    self._reset_world(index, env, seed)
                else:
                    result = env.reset(seed=seed)
                    obs = _observation(result)
                    self._write_obs("obs of reset", index, obs)
                    if self._inspect[index]:
                        self._record(index, obs)
                        if (source := wrappers.mask_source(env, result[1])) is not None:
                            self._inspect[index] = 2 + MASK_SOURCES.index(source)
                if recorder is not None:
                    recorder.take_reward()
                    recorder.take_reset()
            except (Exception, SystemExit) as error:
                raise Failed(fault(error, self.first + index, RESETTING)) from error

    def _reset_world(self, first: int, world: players.World, seed: int | None = None) -> None:
        """Begin an episode of the players in the rows that begin at `first`."""
        views = world.reset() if seed is None else world.reset(seed=seed)
        for row, (agent, obs) in enumerate(zip(world.agents, views, strict=True), first):
            self._write_obs(f"obs of reset, {agent!r}", row, obs)
            if self._inspect[row]:
                self._record(row, obs)

    def _step_worlds(self) -> None:
        """Take one step, as `step` does, in worlds of players; all players of a world end together."""
        index, stage = 0, STEPPING
        actions = list(self._read_actions())
        try:
            for index, world in enumerate(self.envs):
                first = index * self.num_players
                self.report(STEPPING, self.first + first)
                step = world.step(actions[first : first + self.num_players])
                recorder = self.recorders[index]
                own = step.rewards if recorder is None else world.of_players(recorder.take_reward())
                own_done, write = True, self._write_final if step.over else self._write_obs
                for player, agent in enumerate(world.agents):
                    row = first + player
                    write(f"obs of step, {agent!r}", row, step.obs[player])
                    self._reward[row], self._own_reward[row] = step.rewards[player], own[player]
                    self._terminated[row], self._truncated[row] = step.terminated[player], step.truncated[player]
                    if self._inspect[row] and not step.over:
                        self._record(row, step.obs[player])
                if step.over:
                    stage = RESETTING
                    self.report(RESETTING, self.first + first)
                    self._reset_world(first, world)
                    own_done = recorder is None or recorder.take_reset()
                    stage = STEPPING
                    for player, info in enumerate(step.infos):
                        self._success[first + player], self._own_done[first + player] = _success(info), own_done
        except (Exception, SystemExit) as error:
            raise Failed(fault(error, self.first + index * self.num_players, stage)) from error

    def step(self) -> None:
        """Take one step in each environment; where an episode ends, the next one begins at once."""
        if not self.envs:
            return
        if self.in_worlds:
            self._step_worlds()
            return
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


def _facts(env: Any) -> Facts:
    spaces = contract.describe(env.observation_space), contract.describe(env.action_space, field="action_space")
    return Facts(*spaces, env.num_players, env.shared_reward) if isinstance(env, players.World) else Facts(*spaces)


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

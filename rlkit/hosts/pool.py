"""Many copies of an environment that lives outside of JAX, as one thing to reset and to step."""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rlkit.hosts.closing import Closing
from rlkit.hosts.processes import Processes
from rlkit.hosts.spaces import space
from rlkit.hosts.threads import Local
from rlkit.hosts.worker import block, contract, group, wire
from rlkit.hosts.worker.group import Fault
from rlkit.hosts.worker.making import Recipe
from rlkit.types import ConfigError, PyTree

BACKENDS = ("process", "thread", "serial")
_FOREVER = ("raised", "silent", "died")  # what another try may mend


class HostError(RuntimeError):
    """An environment outside of JAX failed. One line: the environment, the worker, the seed, and what happened."""


class Step(NamedTuple):
    """One step of N environments; leaves of NumPy."""

    obs: PyTree  # [N, ...] what the next action is taken on: where an episode ended, the next one's first
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool, the world ended
    truncated: np.ndarray  # [N] bool, the clock ended
    next_obs: PyTree  # [N, ...] what the action led to, before any reset
    # [N] bool, false where nothing of the above counts but `obs`: no step was taken, and an episode begins there. Where
    # the step before did not end an episode, its worker failed in this one, and that episode has to be cut there.
    real: np.ndarray
    returns: np.ndarray  # [N] float32, the return of the episode that ended with this step; elsewhere NaN
    lengths: np.ndarray  # [N] int32, its length in steps; elsewhere 0


class Episodes:
    """Returns and lengths of the episodes of N environments, as they go on and end."""

    def __init__(self, num_envs: int):
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int32)
        self.none = np.full(num_envs, np.nan, np.float32), np.zeros(num_envs, np.int32)

    def clear(self, where: Any = slice(None)) -> None:
        self.returns[where], self.lengths[where] = 0.0, 0

    def step(self, reward: np.ndarray, done: np.ndarray, real: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """The returns and lengths of what ended, as in `Step`; without `real` all are."""
        self.returns += reward
        self.lengths += 1
        if real is not None:
            done = done & real
            self.clear(~real)
        if not done.any():
            return self.none
        ended = np.where(done, self.returns, np.nan).astype(np.float32), np.where(done, self.lengths, 0)
        self.clear(done)
        return ended


class Pool(Closing):
    """N environments in worker processes, in threads, or in this process; `rlkit.hosts.make` makes one.

    Closing it, leaving its `with` block, or the end of this process in whatever way, ends all workers.
    """

    lockstep = True  # each step is one of every environment, but for restarts

    def __init__(
        self,
        recipe: Recipe,
        *,
        name: str,
        num_envs: int,
        backend: str = "process",
        seed: int = 0,
        num_workers: int | None = None,
        timeout: float = 5.0,
        restarts: int = 10,
    ):
        _positive(num_envs=num_envs, timeout=timeout, **({} if num_workers is None else {"num_workers": num_workers}))
        if backend not in BACKENDS:
            raise ConfigError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}; try {BACKENDS[0]}")
        self.name, self.num_envs, self.seed = name, num_envs, seed
        self.restarts, self.restarted, self.failed = restarts, 0, False
        self.interrupted: Callable[[], bool] = lambda: False
        self.attempts = np.zeros(num_envs, np.int64)  # [N] how often the worker of each has been started anew
        count = 1 if backend == "serial" else min(num_envs, num_workers or cores())
        self.shares = _shares(num_envs, count)
        self.workers: Processes | Local = (
            Processes(recipe, self.shares, timeout)
            if backend == "process"
            else Local(recipe, self.shares, timeout, threads=backend == "thread")
        )
        self._closed_by(self.workers.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.episodes = Episodes(num_envs)
        self.everyone = np.ones(num_envs, bool)

    def _start(self) -> None:
        everyone = range(len(self.shares))
        found, faults = self.workers.start(everyone)
        self._raise(faults)
        (self.obs_tree, self.action_tree), *others = (found[worker] for worker in everyone)
        for other in others:
            if not contract.same(self.obs_tree, other[0]) or not contract.same(self.action_tree, other[1]):
                raise ConfigError(f"env={self.name!r}: expected equal spaces in all workers, got different ones")
        self.plan = block.layout(self.num_envs, self.obs_tree, self.action_tree)
        self._raise(self.workers.attach(self.plan, everyone))
        self.views = self.workers.views()
        self.observation_space, self.action_space = space(self.obs_tree), space(self.action_tree)
        self.actions_treedef = jax.tree.structure(contract.build(self.action_tree, iter(self.views.action)))

    def watch(self, interrupted: Callable[[], bool]) -> None:
        """Let `interrupted` be asked while workers are waited for; where it says true, `Interrupted` is raised."""
        self.workers.interrupted = self.interrupted = interrupted

    def reset(self, seed: int | None = None) -> PyTree:
        """Begin new episodes, seeded by `seed`, or else by the pool's: the same seed, the same episodes again.

        Returns the observations [N, ...]. Raises as `step` does.
        """
        self._open()
        self.seed = self.seed if seed is None else seed
        self.attempts[:] = 0
        self._reset(range(len(self.shares)))
        self.episodes.clear()
        return jax.tree.map(np.copy, self._obs())

    def _reset(self, workers: Sequence[int]) -> None:
        """Reset environments of workers, those that fail in it again in fresh workers."""
        for worker in workers:
            for env in self._envs(worker):
                self.views.seed[env] = derive(self.seed, env, int(self.attempts[env]))
        faults = self.workers.run(wire.RESET, workers)
        while faults:
            faults = self._restart(faults)

    def step(self, actions: PyTree, *, copy: bool = True) -> Step:
        """One step of each environment, with actions [N, ...] of `action_space`.

        Args:
          actions: leaves of NumPy, or of JAX on the CPU.
          copy: whether the arrays returned are the caller's to keep; else the next call overwrites some of them.

        Raises:
          HostError: an environment failed, and the pool's restarts are used up; or that was so before.
          ConfigError: an environment broke its contract, or the actions are not of this shape.
        """
        self._open()
        self._write(actions)
        views, real = self.views, self.everyone
        faults = self.workers.run(wire.STEP, range(len(self.shares)))
        if faults:
            real = self.everyone.copy()
            while faults:
                for worker, _ in faults:
                    real[self._envs(worker)] = False
                faults = self._restart(faults)
        terminated, truncated = views.terminated & real, views.truncated & real
        done = terminated | truncated
        returns, lengths = self.episodes.step(views.reward, done, None if real is self.everyone else real)
        obs = self._obs()
        next_obs = obs if not copy else jax.tree.map(np.copy, obs)
        if done.any():
            final = contract.build(self.obs_tree, iter(views.final))
            next_obs = jax.tree.map(lambda x, last: np.where(_rows(done, x), last, x), obs, final)
        if copy:
            obs, real = jax.tree.map(np.copy, obs), real.copy()
            returns, lengths = returns.copy(), lengths.copy()
        reward = views.reward.copy() if copy else views.reward
        return Step(obs, reward, terminated, truncated, next_obs, real, returns, lengths)

    def _obs(self) -> PyTree:
        return contract.build(self.obs_tree, iter(self.views.obs))

    def _write(self, actions: PyTree) -> None:
        leaves, treedef = jax.tree.flatten(actions)
        if treedef != self.actions_treedef:
            raise ConfigError(f"actions must have the structure of {self.action_space}, got {treedef}")
        for view, leaf in zip(self.views.action, leaves, strict=True):
            if leaf.shape != view.shape:
                raise ConfigError(
                    f"actions must be one for each of num_envs={self.num_envs} environments, "
                    f"{list(view.shape)}, got {list(leaf.shape)}"
                )
            view[...] = leaf

    def _envs(self, worker: int) -> range:
        first, count = self.shares[worker]
        return range(first, first + count)

    def _restart(self, faults: list[tuple[int, Fault]]) -> list[tuple[int, Fault]]:
        """Start failed workers anew and reset their environments; returns what failed in that."""
        lasting = [fault for fault in faults if fault[1].kind not in _FOREVER]
        self.restarted += len(faults)
        if lasting or self.restarted > self.restarts:
            self._raise(lasting or faults)
        workers = [worker for worker, _ in faults]
        for worker in workers:
            self.attempts[self._envs(worker)] += 1
        found, again = self.workers.start(workers)
        up = [worker for worker in found if worker not in {worker for worker, _ in again}]
        for worker in up:
            if not (
                contract.same(found[worker][0], self.obs_tree) and contract.same(found[worker][1], self.action_tree)
            ):
                text = f"spaces: expected those of before, got {contract.says(found[worker][0])}"
                self._raise([(worker, Fault("contract", self.shares[worker][0], group.MAKING, text))])
            for env in self._envs(worker):
                self.views.seed[env] = derive(self.seed, env, int(self.attempts[env]))
        return again + self.workers.run(wire.RESET, up)

    def _raise(self, faults: list[tuple[int, Fault]]) -> None:
        """Raise what the first fault is, where there is one."""
        if not faults:
            return
        self.failed = True  # the workers of all faults are gone
        worker, fault = faults[0]
        if fault.kind in ("missing", "unknown"):
            raise ConfigError(f"env={self.name!r} cannot be made: {fault.text}{_remedy(fault)}")
        seed = derive(self.seed, fault.env, int(self.attempts[fault.env]))
        where = f"env={self.name!r}: environment {fault.env} of worker {worker}, seed {seed}"
        if fault.kind == "contract":
            raise ConfigError(f"{where}: {fault.text}")
        doing = {group.READY: "between two steps"}.get(fault.doing, f"in {group.DOING[fault.doing]}")
        tried = (
            f"; all {self.restarts} restarts are used up" if self.restarted and self.restarted > self.restarts else ""
        )
        raise HostError(f"{where}: failed {doing}: {fault.text}{tried}")

    def _open(self) -> None:
        if self.closed:
            raise HostError(f"env={self.name!r}: the pool is closed")
        if self.failed:
            raise HostError(f"env={self.name!r}: the pool must not be used after it has failed; make another")


def derive(seed: int, env: int, attempt: int = 0) -> int:
    """The seed of environment `env`'s first reset, and after `attempt` restarts of its worker."""
    return int(np.random.SeedSequence((seed, env, attempt)).generate_state(1)[0] >> 1)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shares(num_envs: int, workers: int) -> list[tuple[int, int]]:
    """(first, count) for each worker, as even as can be."""
    ends = [num_envs * worker // workers for worker in range(workers + 1)]
    return [(first, last - first) for first, last in itertools.pairwise(ends)]


def _rows(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *[1] * (like.ndim - 1))


def _positive(**values: Any) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ConfigError(f"{name}={value!r} must be above 0; try 1")


def _remedy(fault: Fault) -> str:
    """The install command, where an extra of rlkit has what is missing."""
    extra = "mujoco" if "mujoco" in fault.text.lower() else "atari" if "ALE" in fault.text else ""
    known = extra and (fault.kind == "missing" or "NamespaceNotFound" in fault.text)
    return f"; install it: pip install 'rlkit-jax[{extra}]'" if known else ""

"""Pools: N copies of an environment outside of JAX that are reset and stepped together."""

import atexit
import os
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from rlkit.hosts.failure import Failure, HostError, locate, remedy
from rlkit.hosts.processes import Processes
from rlkit.hosts.serial import Serial
from rlkit.hosts.spaces import as_actions, space
from rlkit.hosts.worker import contract, group, messages, shared_arrays
from rlkit.hosts.worker.group import Fault
from rlkit.hosts.worker.recipe import Recipe
from rlkit.names import MASK_SOURCES
from rlkit.training import worlds
from rlkit.types import ConfigError, PyTree

BACKENDS = ("process", "serial")
_TRANSIENT = ("raised", "timeout", "died")  # kinds of faults that may not occur again after a restart


class Step(NamedTuple):
    """One step of N environments; leaves of NumPy."""

    obs: PyTree  # [N, ...] for the next action: where an episode ended, the first observation of the next one
    reward: np.ndarray  # [N] float32
    terminated: np.ndarray  # [N] bool, a terminal state was reached
    truncated: np.ndarray  # [N] bool, a time limit ended the episode
    next_obs: PyTree  # [N, ...] after the action, before any reset
    # [N] bool, false where no step was taken: of the fields above only `obs` is valid there, and it begins an episode.
    # If the step before did not end an episode, the worker failed in this one, and the episode has to be truncated.
    real: np.ndarray
    # Of the environment's own rewards and episodes, which differ from `reward`, `terminated` and `truncated` where a
    # wrapper changes these for learning:
    returns: np.ndarray  # [N] float32, the return of the episode that ended with this step; elsewhere NaN
    lengths: np.ndarray  # [N] int32, its length in steps; elsewhere 0
    # [N] float32, 1 where that episode was a success (`is_success` or `success` in the info of its last step), else 0;
    # NaN where none ended, or without them.
    successes: np.ndarray


class Episodes:
    """Running returns and lengths of the episodes of N environments."""

    def __init__(self, num_envs: int):
        self.returns, self.lengths = np.zeros(num_envs), np.zeros(num_envs, np.int32)
        self.none = np.full(num_envs, np.nan, np.float32), np.zeros(num_envs, np.int32)

    def clear(self, where: Any = slice(None)) -> None:
        """Start to count from zero, in all environments or where an index or a mask selects them."""
        self.returns[where], self.lengths[where] = 0.0, 0

    def step(self, reward: np.ndarray, done: np.ndarray, real: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Add one step; return the returns and lengths of the episodes that ended, as in `Step`.

        Without `real`, every environment took a step.
        """
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


class Closeable:
    """A pool that is closed by `close`, by its `with` block, by garbage collection, or at interpreter exit."""

    name: str  # for errors
    closed = True

    def _set_close(self, close: Callable[[], Any]) -> None:
        """Register the function that releases the resources, in place of the one registered before."""
        if not self.closed:
            self._close.detach()
            atexit.unregister(self._close)
        self._close = weakref.finalize(self, close)
        atexit.register(self._close)
        self.closed = False

    def close(self) -> None:
        """Release the resources; a second call does nothing."""
        if not self.closed:
            self.closed = True
            atexit.unregister(self._close)
            self._close()

    def _check_open(self) -> None:
        if self.closed:
            raise HostError(f"env={self.name!r}: the pool is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


class Pool(Closeable):
    """N environments in worker processes or in this process; `rlkit.hosts.make` makes one.

    All workers end when the pool is closed, when its `with` block is left, and when this process ends in any way.
    `first` is the index of its first environment among those of all processes that train together. The players of an
    environment of several, `num_players`, are adjacent among the N, and `shared_reward` is true where they are a team.
    """

    lockstep = True  # every environment takes a step in each `step`, except at restarts

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
        first: int = 0,
    ):
        _check_positive(
            num_envs=num_envs, timeout=timeout, **({} if num_workers is None else {"num_workers": num_workers})
        )
        if backend not in BACKENDS:
            raise ConfigError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}; try {BACKENDS[0]}")
        self.name, self.num_envs, self.seed, self.first = name, num_envs, seed, first
        self.restarts, self.restarted, self.failed = restarts, 0, False  # restarts allowed, and used so far
        self.interrupted: Callable[[], bool] = lambda: False
        self.on_failure: Callable[[Failure], None] | None = None
        self.attempts = np.zeros(num_envs, np.int64)  # [N] number of restarts of its worker
        self.raised: dict[int, str] = {}  # by worker, the exception that it raised since its last completed step
        count = 1 if backend == "serial" else min(num_envs, num_workers or num_cores())
        self.shares = group.shares(num_envs, count)
        self.workers: Processes | Serial = (
            Processes(recipe, num_envs, count, timeout) if backend == "process" else Serial(recipe, num_envs)
        )
        self._set_close(self.workers.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self.episodes = Episodes(num_envs)
        self.all_real = np.ones(num_envs, bool)

    def _start(self) -> None:
        workers = range(len(self.shares))
        found, faults = self.workers.start(workers)
        self._raise_first(faults)
        self.facts = found[0]
        if not all(self.facts.equals(other) for other in found.values()):
            raise ConfigError(f"env={self.name!r}: expected equal spaces in all workers, got different ones")
        self.obs_tree, self.action_tree, self.num_players, self.shared_reward = self.facts
        worlds.check_streams("num_envs", self.num_envs, self)
        self.shares = group.shares(self.num_envs, len(self.shares), self.num_players)
        self.workers.keep(self.shares)
        workers = range(len(self.shares))
        layout = shared_arrays.make_layout(self.num_envs, self.obs_tree, self.action_tree)
        self._raise_first(self.workers.attach(layout, workers))
        self.views = self.workers.views()
        self.observation_space, self.action_space = space(self.obs_tree), space(self.action_tree)
        self.actions_treedef = jax.tree.structure(contract.build(self.action_tree, iter(self.views.action)))

    def watch(self, interrupted: Callable[[], bool], on_failure: Callable[[Failure], None] | None = None) -> None:
        """Call `interrupted` repeatedly while waiting for workers, and raise `Interrupted` when it returns true.

        `on_failure` is called with each failure of an environment in a reset or a step, before the worker is replaced;
        without it, each after which the worker is replaced is a warning.
        """
        self.workers.interrupted = self.interrupted = interrupted
        self.on_failure = on_failure

    def reset(self, seed: int | None = None) -> PyTree:
        """Begin new episodes, seeded by `seed` or else by the pool's seed; the same seed gives the same episodes.

        Returns the observations [N, ...]. Raises the same errors as `step`.
        """
        self._check_open()
        self.seed = self.seed if seed is None else seed
        self.attempts[:] = 0
        self.raised.clear()
        self._reset(range(len(self.shares)))
        self.episodes.clear()
        return jax.tree.map(np.copy, self._obs())

    def _reset(self, workers: Sequence[int]) -> None:
        """Reset the environments of some workers; workers that fail are replaced by new ones."""
        for worker in workers:
            for env in self._envs(worker):
                self.views.seed[env] = self._seed(env)
        faults = self.workers.run(messages.RESET, workers)
        while faults:
            faults = self._restart(faults)

    def step(self, actions: PyTree, *, copy: bool = True) -> Step:
        """Take one step in each environment, with actions [N, ...] of `action_space`.

        Args:
          actions: leaves of NumPy, or of JAX on the CPU; integers where the space has them.
          copy: return copies; without it the next call overwrites some of the returned arrays.

        Raises:
          HostError: an environment failed, in this call or in an earlier one, and all restarts are used up, or its
            worker raised the same exception before a restart and completed no step in between.
          ConfigError: an environment violated its contract, or the actions have another shape or structure, or are no
            integers of a discrete space.
        """
        self._check_open()
        self._write_actions(actions)
        views, real = self.views, self.all_real
        faults = self.workers.run(messages.STEP, range(len(self.shares)))
        failing = {worker for worker, _ in faults}
        self.raised = {worker: text for worker, text in self.raised.items() if worker in failing}
        if faults:
            real = self.all_real.copy()
            while faults:
                for worker, _ in faults:
                    real[self._envs(worker)] = False
                faults = self._restart(faults)
        terminated, truncated = views.terminated & real, views.truncated & real
        done = terminated | truncated
        every = None if real is self.all_real else real
        returns, lengths = self.episodes.step(views.own_reward, done & views.own_done, every)
        obs = self._obs()
        next_obs = obs if not copy else jax.tree.map(np.copy, obs)
        if done.any():
            final = contract.build(self.obs_tree, iter(views.final))
            next_obs = jax.tree.map(lambda x, last: np.where(_expand(done, x), last, x), obs, final)
        if copy:
            obs, real = jax.tree.map(np.copy, obs), real.copy()
            returns, lengths = returns.copy(), lengths.copy()
        reward = views.reward.copy() if copy else views.reward
        if real is not self.all_real:
            reward[~real] = 0.0  # in place of those of a step before
        successes = np.where(lengths > 0, views.success, np.float32(np.nan))
        return Step(obs, reward, terminated, truncated, next_obs, real, returns, lengths, successes)

    def _obs(self) -> PyTree:
        return contract.build(self.obs_tree, iter(self.views.obs))

    def inspect(self, on: bool) -> None:
        """Switch on or off that workers keep observations of float64 as they are, for `native_obs`."""
        self.views.inspect[:] = on

    def mask_source(self) -> str | None:
        """Return where the environments have a mask of their actions, as a reset while inspecting found it."""
        found = int(self.views.inspect.max())
        return MASK_SOURCES[found - 2] if found > 1 else None

    def native_obs(self) -> list[tuple[str, np.ndarray]]:
        """Return the newest observations' leaves of float64: their paths and copies [N, ...], while inspecting."""
        leaves = contract.wide_leaves(self.obs_tree)
        return [(leaf.path, view.copy()) for leaf, view in zip(leaves, self.views.native, strict=True)]

    def _write_actions(self, actions: PyTree) -> None:
        leaves, treedef = jax.tree.flatten(actions)
        if treedef != self.actions_treedef:
            hint = "; make an array of them by numpy.asarray" if isinstance(actions, list) else ""
            raise ConfigError(f"actions must have the structure of {self.action_space}, got {treedef}{hint}")
        for view, leaf, x in zip(self.views.action, contract.leaves(self.action_tree), leaves, strict=True):
            view[...] = as_actions(leaf, x, self.num_envs)

    def _envs(self, worker: int) -> range:
        first, count = self.shares[worker]
        return range(first, first + count)

    def _restart(self, faults: list[tuple[int, Fault]]) -> list[tuple[int, Fault]]:
        """Replace failed workers and reset their environments; return the faults of those that failed again."""
        if self.on_failure is not None:
            for worker, fault in faults:
                self.on_failure(self._failure(worker, fault))
        self.restarted += len(faults)
        self._raise_first([fault for fault in faults if fault[1].kind not in _TRANSIENT])
        if self.restarted > self.restarts:
            self._raise_first(faults, f"; all {self.restarts} restarts are used up")
        raised = {worker: fault.text for worker, fault in faults if fault.kind == "raised"}
        again = [(worker, fault) for worker, fault in faults if raised.get(worker, "") == self.raised.get(worker)]
        self._raise_first(again, "; the same exception as before the restart")
        self.raised |= raised
        if self.on_failure is None:
            for worker, fault in faults:
                warnings.warn(f"{self._failure(worker, fault)}; its worker starts anew", stacklevel=3)
        workers = [worker for worker, _ in faults]
        for worker in workers:
            self.attempts[self._envs(worker)] += 1
        found, new_faults = self.workers.start(workers)
        started = [worker for worker in found if worker not in {worker for worker, _ in new_faults}]
        for worker in started:
            if not self.facts.equals(found[worker]):
                text = f"spaces: expected the same as before the restart, got {found[worker]}"
                self._raise_first([(worker, Fault("contract", self.shares[worker][0], group.MAKING, text))])
            for env in self._envs(worker):
                self.views.seed[env] = self._seed(env)
        return new_faults + self.workers.run(messages.RESET, started)

    def _raise_first(self, faults: list[tuple[int, Fault]], remark: str = "") -> None:
        """Raise the first fault, where there is one: a ConfigError, or a HostError whose text ends with `remark`."""
        if not faults:
            return
        self.failed = True  # the workers of all faults have been removed
        worker, fault = faults[0]
        if fault.kind in ("missing", "unknown"):
            raise ConfigError(f"env={self.name!r} cannot be made: {fault.text}{remedy(fault)}")
        if fault.kind == "contract":
            raise ConfigError(f"env={self.name!r}: {self.locate(fault.env)}: {fault.text}")
        raise HostError(f"{self._failure(worker, fault)}{remark}")

    def _failure(self, worker: int, fault: Fault) -> Failure:
        stage = "between two steps" if fault.stage == group.READY else f"in {group.STAGE_NAMES[fault.stage]}"
        return Failure(self.name, self.first + fault.env, worker, self._seed(fault.env), stage, fault.kind, fault.text)

    def _seed(self, env: int) -> int:
        return derive(self.seed, self.first + env, int(self.attempts[env]))

    def locate(self, env: int) -> str:
        """Name an environment, its worker and the seed of its last seeded reset, in words, for errors."""
        worker = next(worker for worker in range(len(self.shares)) if env in self._envs(worker))
        return locate(self.first + env, worker, self._seed(env))

    def _check_open(self) -> None:
        super()._check_open()
        if self.failed:
            raise HostError(f"env={self.name!r}: the pool must not be used after it has failed; make another")


def derive(seed: int, env: int, attempt: int = 0) -> int:
    """Derive the seed of environment `env` for its first reset, or for that after `attempt` restarts of its worker."""
    return int(np.random.SeedSequence((seed, env, attempt)).generate_state(1)[0] >> 1)


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _expand(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Append axes to a mask [N], so that it broadcasts against `like` [N, ...]."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))


def _check_positive(**values: Any) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ConfigError(f"{name}={value!r} must be above 0; try 1")

"""Rollouts of environments outside of JAX: a compiled function acts, and the steps are written into NumPy arrays.

Environments may get ahead of each other: where one takes no real step (its worker was restarted, or it resets in a step
of its own), the others continue, and their additional steps are stored for the next rollout.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit import _cpu
from rlkit.hosts.pool import Step
from rlkit.hosts.processes import Interrupted
from rlkit.networks.cores.recurrent import where_rows
from rlkit.spaces import Space, shape_of
from rlkit.training.rollout import memories
from rlkit.types import Agent, Array, Key, PyTree, Transition


class Collected(NamedTuple):
    """One rollout; NumPy arrays that stay valid during the next call of `collect` and not during the one after it."""

    transitions: Transition  # [T, N, ...]
    returns: np.ndarray  # [T, N] float32, return of the episode that ended at this step; NaN elsewhere
    lengths: np.ndarray  # [T, N] int32, its length in steps; 0 elsewhere
    successes: np.ndarray  # [T, N] float32, 1 or 0, whether that episode was a success; NaN elsewhere, or if unknown
    held: Any  # with `hold`, a Transition [N, ...]: the steps held back for the next rollout; else ()
    seconds: float  # spent in stepping the environments


class NotFinite(Exception):
    """Raised for an observation or a reward that is NaN or infinite; the text names environment, worker and seed."""


class Collector:
    """Collects rollouts of an agent's exploration in a pool.

    A worker that fails truncates the episodes of its environments after their last real step, but the failure is
    noticed one step later. With `hold`, the last step of each environment is held back until then and becomes the first
    of the next rollout, so that a replay buffer never joins two episodes. Without `hold`, a rollout ends with the last
    step, and a failure between two rollouts is not marked as a truncation; on-policy agents do not need that mark.

    Args:
      agent: its `act` explores.
      pool: of N environments.
      num_steps: T.
      device: for acting.
      hold: hold back the last step of each environment.
      max_steps: the most steps of each environment that a call of `run` collects; None for T.
      total_envs: environments of all processes that train together; None for those of the pool.
    """

    def __init__(
        self,
        agent: Agent,
        pool: Any,
        *,
        num_steps: int,
        device: Any,
        hold: bool,
        max_steps: int | None = None,
        total_envs: int | None = None,
    ):
        self.pool, self.num_steps, self.device, self.hold = pool, num_steps, device, hold
        self.num_envs = pool.num_envs
        self.total_envs, self.own = total_envs or pool.num_envs, slice(pool.first, pool.first + pool.num_envs)
        self.act = jax.jit(partial(act, agent, total_envs=self.total_envs, own=self.own))
        initial_memory = jax.tree.map(lambda x: jnp.asarray(x)[self.own], memories(agent, self.total_envs))
        self.memory = jax.device_put(initial_memory, device)
        self.counts = np.zeros(self.num_envs, np.int64)  # [N] rows written for the next rollout
        self.env_indices = np.arange(self.num_envs)
        self.ended = np.ones(self.num_envs, bool)  # [N] true where an episode begins and the memory is reset
        self.obs: PyTree = None
        self.buffers: list[list[np.ndarray]] = []
        most = max(num_steps, max_steps or 0)
        self.rows = most + int(hold) + (8 if pool.lockstep else most)

    def compile(self, actor: PyTree, key: Key) -> None:
        """Compile `act` for arguments like those of `collect`, and allocate the arrays of the rollouts."""
        obs = jax.tree.map(
            lambda x: np.zeros((self.num_envs, *x.shape), x.dtype), shape_of(self.pool.observation_space)
        )
        actor, key = self.place((actor, key))
        _, action, extras = self.act(actor, self.memory, self.ended, obs, key, np.uint32(0))
        reward: Any = np.zeros(self.num_envs, np.float32)
        flag: Any = self.ended
        length = np.zeros(self.num_envs, np.int32)
        row = (Transition(obs, action, reward, flag, flag, obs, extras), reward, length, reward)
        self.treedef = jax.tree.structure(row)
        shapes = [(x.shape, np.dtype(x.dtype)) for x in jax.tree.leaves(row)]
        self.buffers = [[np.empty((self.rows, *shape), dtype) for shape, dtype in shapes] for _ in range(3)]
        self.truncated = self.treedef.unflatten(range(self.treedef.num_leaves))[0].truncated

    def shapes(self, num_steps: int | None = None) -> Transition:
        """Return the shapes and dtypes of a rollout [T, N, ...], or of one of `num_steps` steps."""
        leaves = [jax.ShapeDtypeStruct((num_steps or self.num_steps, *x.shape[1:]), x.dtype) for x in self.buffers[0]]
        return self.treedef.unflatten(leaves)[0]

    def place(self, tree: PyTree) -> PyTree:
        """Copy a tree to the device for acting."""
        return jax.device_put(tree, self.device, may_alias=False)

    def begin(self, seed: int, held: Any = ()) -> None:
        """Start new episodes. `held`, the steps that an earlier collector held back, come first and are truncated."""
        self.obs = self.pool.reset(seed)
        self.ended[:] = True
        self.counts[:] = 0
        if held:
            done = np.asarray(held.terminated) | np.asarray(held.truncated)
            held = held._replace(truncated=np.asarray(held.truncated) | ~done)
            nan = np.full(self.num_envs, np.nan, np.float32)
            row = held, nan, np.zeros(self.num_envs, np.int32), nan
            for buffer, leaf in zip(self.buffers[0], jax.tree.leaves(row), strict=True):
                buffer[0] = leaf
            self.counts[:] = 1

    def collect(self, actor: PyTree, key: Key) -> Collected:
        """Collect T transitions of each environment, acting with `actor`.

        Raises:
          NotFinite: an observation or a reward is not a finite number.
          HostError, ConfigError, Interrupted: raised by the pool.
        """
        actor, key = self.place((actor, key))
        return self.run(partial(self.explore, actor, key), self.num_steps)

    def explore(self, actor: PyTree, key: Key, number: int) -> tuple[PyTree, PyTree]:
        """Return actions and extras [N, ...] for the newest observations; `number` counts the calls with this key."""
        self.memory, action, extras = self.act(actor, self.memory, self.ended, self.obs, key, np.uint32(number))
        return action, extras

    def run(self, choose: Callable[[int], tuple[PyTree, PyTree]], num_steps: int) -> Collected:
        """Collect `num_steps` transitions of each environment.

        Args:
          choose: number -> actions and extras [N, ...] for the newest observations, `obs`; the number of the call.
          num_steps: at most the collector's `max_steps`.

        Raises: as `collect`.
        """
        needed, seconds, number = num_steps + self.hold, 0.0, 0
        while self.counts.min() < needed:
            if self.pool.interrupted():
                raise Interrupted
            action, extras = jax.tree.map(np.asarray, choose(number))
            obs = jax.tree.map(np.copy, self.obs)
            begin = time.perf_counter()
            step = self.pool.step(action, copy=False)
            seconds += time.perf_counter() - begin
            self._write(obs, action, extras, step)
            self.ended = step.terminated | step.truncated | ~step.real
            self.obs, number = step.obs, number + 1
        return self._take_rollout(num_steps, seconds)

    def _write(self, obs: PyTree, action: PyTree, extras: PyTree, step: Step) -> None:
        """Append a step of every environment to its rows; truncate the episodes of those that took no step."""
        transition: Any = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs, extras)
        episodes = step.returns, step.lengths, step.successes
        leaves = jax.tree.leaves((*transition, *episodes))  # in the order of a Transition's leaves
        buffers, counts = self.buffers[0], self.counts
        first = int(counts[0])
        if step.real.all() and first < self.rows and (counts == first).all():
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[first] = leaf
            counts += 1
            return
        self._truncate(~step.real)
        full = step.real & (counts >= self.rows)
        self._truncate(full)  # their steps are dropped until the slowest environment has caught up
        envs = self.env_indices[step.real & ~full]
        for buffer, leaf in zip(buffers, leaves, strict=True):
            buffer[counts[envs], envs] = leaf[envs]
        counts[envs] += 1

    def _truncate(self, where: np.ndarray) -> None:
        """Mark the last row of the environments in a mask [N] as truncated, unless it is terminated."""
        envs = self.env_indices[where & (self.counts > 0)]
        truncated, terminated = (self.buffers[0][leaf] for leaf in (self.truncated, self.truncated - 1))
        last = self.counts[envs] - 1
        truncated[last, envs] |= ~terminated[last, envs]

    def _take_rollout(self, num_steps: int, seconds: float) -> Collected:
        """Return the rollout and move the steps after it to the buffers of the next one."""
        current, following, previous = self.buffers  # an update may still be reading the previous rollout
        self.buffers = [following, previous, current]
        surplus = int(self.counts.max()) - num_steps
        for buffer, other in zip(current, following, strict=True):
            other[:surplus] = buffer[num_steps : num_steps + surplus]
        self.counts -= num_steps
        transitions, *episodes = self.treedef.unflatten([buffer[:num_steps] for buffer in current])
        self._check(transitions)
        held = jax.tree.map(lambda x: x[0].copy(), self.treedef.unflatten(following)[0]) if self.hold else ()
        return Collected(transitions, *episodes, held=held, seconds=seconds)

    def _check(self, transitions: Transition) -> None:
        fields = (("reward", transitions.reward), ("obs", transitions.obs), ("obs", transitions.next_obs))
        for field, tree in fields:
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    time_, env, *rest = np.argwhere(~np.isfinite(leaf))[0]
                    value = leaf[(time_, env, *rest)]
                    name = f"{field}{jax.tree_util.keystr(path)}{[int(i) for i in rest] or ''}"
                    raise NotFinite(f"{name} of {self.pool.locate(int(env))}, {value},")


@_cpu.straight_line_keys
def act(
    agent: Agent,
    actor: PyTree,
    memory: PyTree,
    ended: Array,
    obs: PyTree,
    key: Key,
    number: Array,
    *,
    total_envs: int | None = None,
    own: slice = slice(None),
) -> tuple[PyTree, PyTree, PyTree]:
    """Act in N environments; return memory, actions and extras [N, ...]. `number` [] counts the calls with this key.

    Where these are a part of `total_envs` environments, `own` selects the part.
    """
    total_envs = total_envs or ended.shape[0]
    keys = jax.random.split(jax.random.fold_in(key, number), total_envs)[own]
    fresh = jax.tree.map(lambda x: x[own], memories(agent, total_envs))
    memory = where_rows(ended, fresh, memory)
    return jax.vmap(agent.act, (None, 0, 0, 0))(actor, memory, obs, keys)


def act_shapes(agent: Agent, obs_space: Space, actor: PyTree, num_envs: int) -> tuple[PyTree, PyTree, PyTree]:
    """Return the shapes and dtypes of memory, actions and extras [N, ...]."""
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), shape_of(obs_space))
    memory = jax.eval_shape(lambda: memories(agent, num_envs))
    ended, number = jax.ShapeDtypeStruct((num_envs,), bool), jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.eval_shape(partial(act, agent), actor, memory, ended, obs, _key(), number)


def _key() -> Key:
    return jax.eval_shape(lambda: jax.random.key(0))

"""Rollouts of environments outside of JAX: the host writes transitions into arrays while a compiled function acts.

Environments need not keep pace: where one takes no real step (its worker was started anew, or it resets in a step of
its own), the others go on, and what they are ahead is kept for the next rollout.
"""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit._cpu.random_bits import straight
from rlkit.hosts.pool import Step
from rlkit.hosts.processes import Interrupted
from rlkit.networks.recurrent import where_rows
from rlkit.spaces import Space, shape_of
from rlkit.training.rollout import memories
from rlkit.types import Agent, Array, Key, PyTree, Transition


class Collected(NamedTuple):
    """One rollout; NumPy arrays that stay as they are during the next call, and that the one after it overwrites."""

    transitions: Transition  # [T, N, ...]
    returns: np.ndarray  # [T, N] float32, of the episode that ended at this step; NaN elsewhere
    lengths: np.ndarray  # [T, N] int32, 0 elsewhere
    held: Any  # a Transition [N, ...] the first steps of the next rollout, where they are held back; else ()
    seconds: float  # in which environments were stepped


class NotFinite(Exception):
    """An observation or a reward was NaN or infinite; the text says whose."""


class Collector:
    """Lets an agent explore in a pool, rollout by rollout.

    A worker that fails breaks off an episode after its last real step, which is then marked as truncated; but it is
    known one step late. With `hold`, the last step of each environment is held back until then and opens the next
    rollout, so that a replay buffer never joins two episodes. Without, a rollout ends with its last step, and such a
    break between two rollouts leaves no mark, which no on-policy agent looks for.

    Args:
      agent: whose `act` explores.
      pool: of N environments.
      num_steps: T.
      device: to act on.
      hold: whether to hold back the last step.
    """

    def __init__(self, agent: Agent, pool: Any, *, num_steps: int, device: Any, hold: bool):
        self.pool, self.num_steps, self.device, self.hold = pool, num_steps, device, hold
        self.num_envs = pool.num_envs
        self.act = jax.jit(partial(_act, agent))
        fresh = jax.tree.map(jnp.asarray, memories(agent, self.num_envs))
        self.memory = jax.device_put(fresh, device)
        self.counts = np.zeros(self.num_envs, np.int64)  # [N] rows written for the next rollout
        self.everyone = np.arange(self.num_envs)
        self.ended = np.ones(self.num_envs, bool)  # [N] whether the memory is to begin anew
        self.obs: PyTree = None
        self.buffers: list[list[np.ndarray]] = []
        self.rows = num_steps + int(hold) + (8 if pool.lockstep else num_steps)

    def compile(self, actor: PyTree, key: Key) -> None:
        """Compile the acting, with arguments like those of `collect`, and make room for its rollouts."""
        obs = jax.tree.map(
            lambda x: np.zeros((self.num_envs, *x.shape), x.dtype), shape_of(self.pool.observation_space)
        )
        actor, key = self.place((actor, key))
        _, action, extras = self.act(actor, self.memory, self.ended, obs, key, np.uint32(0))
        reward: Any = np.zeros(self.num_envs, np.float32)
        flag: Any = self.ended
        length = np.zeros(self.num_envs, np.int32)
        row = (Transition(obs, action, reward, flag, flag, obs, extras), reward, length)
        self.treedef = jax.tree.structure(row)
        shapes = [(x.shape, np.dtype(x.dtype)) for x in jax.tree.leaves(row)]
        self.buffers = [[np.empty((self.rows, *shape), dtype) for shape, dtype in shapes] for _ in range(3)]
        self.truncated = self.treedef.unflatten(range(self.treedef.num_leaves))[0].truncated

    def shapes(self) -> Transition:
        """Shapes and dtypes of a rollout [T, N, ...]."""
        leaves = [jax.ShapeDtypeStruct((self.num_steps, *x.shape[1:]), x.dtype) for x in self.buffers[0]]
        return self.treedef.unflatten(leaves)[0]

    def place(self, tree: PyTree) -> PyTree:
        """A copy on the acting device."""
        return jax.device_put(tree, self.device, may_alias=False)

    def begin(self, seed: int, held: Any = ()) -> None:
        """Start new episodes. `held` is what an earlier collector held back: those episodes end there, truncated."""
        self.obs = self.pool.reset(seed)
        self.ended[:] = True
        self.counts[:] = 0
        if held:
            done = np.asarray(held.terminated) | np.asarray(held.truncated)
            held = held._replace(truncated=np.asarray(held.truncated) | ~done)
            nothing = np.full(self.num_envs, np.nan, np.float32), np.zeros(self.num_envs, np.int32)
            for buffer, leaf in zip(self.buffers[0], jax.tree.leaves((held, *nothing)), strict=True):
                buffer[0] = leaf
            self.counts[:] = 1

    def collect(self, actor: PyTree, key: Key) -> Collected:
        """Transitions of `actor`'s exploring, at least T in each environment.

        Raises:
          NotFinite: an observation or a reward is not a finite number.
          HostError, ConfigError, Interrupted: what the pool raises.
        """
        actor, key = self.place((actor, key))
        needed, seconds, act_number = self.num_steps + self.hold, 0.0, 0
        while self.counts.min() < needed:
            if self.pool.interrupted():
                raise Interrupted
            self.memory, action, extras = self.act(actor, self.memory, self.ended, self.obs, key, np.uint32(act_number))
            action, extras = jax.tree.map(np.asarray, (action, extras))
            obs = jax.tree.map(np.copy, self.obs)
            begin = time.perf_counter()
            step = self.pool.step(action, copy=False)
            seconds += time.perf_counter() - begin
            self._write(obs, action, extras, step)
            self.ended = step.terminated | step.truncated | ~step.real
            self.obs, act_number = step.obs, act_number + 1
        return self._hand_out(seconds)

    def _write(self, obs: PyTree, action: PyTree, extras: PyTree, step: Step) -> None:
        """Put a step of every environment where it belongs; cut the episodes of those that took none."""
        parts: Any = (obs, action, step.reward, step.terminated, step.truncated, step.next_obs, extras)
        leaves = jax.tree.leaves((*parts, step.returns, step.lengths))  # in the order of a Transition's
        buffers, counts = self.buffers[0], self.counts
        first = int(counts[0])
        if step.real.all() and first < self.rows and (counts == first).all():
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[first] = leaf
            counts += 1
            return
        self._cut(~step.real)
        full = step.real & (counts >= self.rows)
        self._cut(full)  # so far ahead that its steps are dropped, until the slowest has caught up
        envs = self.everyone[step.real & ~full]
        for buffer, leaf in zip(buffers, leaves, strict=True):
            buffer[counts[envs], envs] = leaf[envs]
        counts[envs] += 1

    def _cut(self, where: np.ndarray) -> None:
        """Mark the last step of environments as truncated, unless an episode ended with it."""
        envs = self.everyone[where & (self.counts > 0)]
        truncated, terminated = (self.buffers[0][leaf] for leaf in (self.truncated, self.truncated - 1))
        last = self.counts[envs] - 1
        truncated[last, envs] |= ~terminated[last, envs]

    def _hand_out(self, seconds: float) -> Collected:
        now, following, before = self.buffers  # an update may still be reading the one before: it is left alone
        self.buffers = [following, before, now]
        left = int(self.counts.max()) - self.num_steps
        for buffer, other in zip(now, following, strict=True):
            other[:left] = buffer[self.num_steps : self.num_steps + left]
        self.counts -= self.num_steps
        transitions, returns, lengths = self.treedef.unflatten([buffer[: self.num_steps] for buffer in now])
        self._check(transitions)
        held = jax.tree.map(lambda x: x[0].copy(), self.treedef.unflatten(following)[0]) if self.hold else ()
        return Collected(transitions, returns, lengths, held, seconds)

    def _check(self, transitions: Transition) -> None:
        fields = (("reward", transitions.reward), ("obs", transitions.obs), ("obs", transitions.next_obs))
        for field, tree in fields:
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                    time_, env, *rest = np.argwhere(~np.isfinite(leaf))[0]
                    value = leaf[(time_, env, *rest)]
                    name = f"{field}{jax.tree_util.keystr(path)}{[int(i) for i in rest] or ''}"
                    raise NotFinite(f"{name} of environment {env}, {value},")


def _act(
    agent: Agent, actor: PyTree, memory: PyTree, ended: Array, obs: PyTree, key: Key, number: Array
) -> tuple[PyTree, PyTree, PyTree]:
    """Explore in N environments: memory, actions and extras [N, ...]. `number` [] counts the calls with this key."""
    num_envs = ended.shape[0]
    keys = jax.random.split(jax.random.fold_in(straight(key), number), num_envs)
    memory = where_rows(ended, memories(agent, num_envs), memory)
    return jax.vmap(agent.act, (None, 0, 0, 0))(actor, memory, obs, keys)


def act_shapes(agent: Agent, obs_space: Space, actor: PyTree, num_envs: int) -> tuple[PyTree, PyTree, PyTree]:
    """Shapes and dtypes of memory, actions and extras [N, ...]."""
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_envs, *x.shape), x.dtype), shape_of(obs_space))
    memory = jax.eval_shape(lambda: memories(agent, num_envs))
    ended, number = jax.ShapeDtypeStruct((num_envs,), bool), jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.eval_shape(partial(_act, agent), actor, memory, ended, obs, _key(), number)


def _key() -> Key:
    return jax.eval_shape(lambda: jax.random.key(0))

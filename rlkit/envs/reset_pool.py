"""A pool of starts: episodes begin in one of K states that were made before, in place of a reset in every step.

A step of N streams computes N resets, and uses those of the few whose episodes ended. Where a world is costly to make,
that is most of the time of a step. A row of a pool is a copy of an array.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlkit.envs.wrappers.base import Step, Wrapper
from rlkit.ops._arrays import as_int
from rlkit.ops._integers import uniform_below
from rlkit.spaces import Space
from rlkit.types import Array, ConfigError, Env, Key, PyTree

MAX_STARTS = 2**16
STEPS_OF_A_RESET = 16  # an update makes at most one new start for this number of its steps, or of the pool's rows


class PoolParams(struct.PyTreeNode):
    """Parameters of an environment whose episodes start from a pool."""

    params: Any  # of the environment
    starts: PyTree  # obs, state of K resets, leaves [K, ...]


@dataclass(frozen=True)
class _FromPool(Wrapper):
    """An environment whose episodes, first ones included, begin in a row of the pool, drawn by the key of the reset.

    Typed keys within the state of a row are replaced by new ones: streams that share a start share no random events.
    """

    def reset(self, key: Key, params: PoolParams) -> tuple[PyTree, Any]:
        row_key, state_key = jax.random.split(key)
        number = uniform_below(row_key, (), jnp.uint32(jax.tree.leaves(params.starts)[0].shape[0]))
        obs, state = jax.tree.map(lambda x: x[number], params.starts)
        return obs, _with_new_keys(state, state_key)

    def step(self, key: Key, state: Any, action: PyTree, params: PoolParams) -> Step:
        step_with: Any = self.env.step_with  # type: ignore[attr-defined]
        return step_with(lambda key: self.reset(key, params), key, state, action, params.params)

    def observation_space(self, params: PoolParams) -> Space:
        return self.env.observation_space(params.params)

    def action_space(self, params: PoolParams) -> Space:
        return self.env.action_space(params.params)


@dataclass(frozen=True)
class _OneStart(_FromPool):
    """An environment whose episodes begin in one state, which `starts` is: leaves [...]."""

    def reset(self, key: Key, params: PoolParams) -> tuple[PyTree, Any]:
        return params.starts


def for_one_episode(env: Env, params: Any, key: Key) -> tuple[Env, Any]:
    """Return an environment and parameters for streams of which only the first episode counts.

    Its steps compute no resets: a next episode begins in a start by `key`, the same one for all streams. Where the
    environment has no `step_with`, or a wrapper of the user's own, which may go on after an end, it stays as it is.
    """
    inner = env
    while isinstance(inner, Wrapper) and type(inner).__module__.startswith("rlkit."):
        inner = inner.env
    if isinstance(inner, Wrapper) or not has_pool(inner):
        return env, params
    return from_pool(env, _OneStart), PoolParams(params, inner.reset(key, params))


def from_pool(env: Env, kind: type[_FromPool] = _FromPool) -> Env:
    """Return an environment whose parameters are `PoolParams`, and whose episodes begin in rows of their pool.

    The pool is of the innermost environment. Wrappers around it begin their own states as after any reset.

    Raises:
      ConfigError: the innermost environment has no `step_with`, see `rlkit.types.Env`.
    """
    if isinstance(env, Wrapper):
        return replace(env, env=from_pool(env.env, kind))
    if not has_pool(env):
        name = getattr(env, "name", type(env).__name__)
        raise ConfigError(
            f"reset_pool needs a step without a reset, and env={name!r} has no method step_with beside its step; "
            "write it, or gymnax's step_env, or leave reset_pool out"
        )
    return kind(env)


def has_pool(env: Env) -> bool:
    """Return True where the innermost environment has a step without a reset, and no later `step` of a subclass."""
    inner: Any = _innermost(env)
    if not callable(getattr(inner, "step_with", None)) or "step" in getattr(inner, "__dict__", {}):
        return False
    classes = type(inner).__mro__
    step_of, step_with_of = (next((c for c in classes if name in vars(c)), None) for name in ("step", "step_with"))
    return step_of is None or step_with_of is None or issubclass(step_with_of, step_of)


def make_starts(env: Env, params: Any, keys: Key) -> PyTree:
    """Make a pool of the innermost environment: obs, state of one reset by each key [K], leaves [K, ...]."""
    return jax.vmap(_innermost(env).reset, (0, None))(keys, params)


def check_size(size: int) -> int:
    """Return K. Raises ConfigError unless it is an integer from 1 to 65536."""
    if (size := as_int("reset_pool", size)) > MAX_STARTS:
        raise ConfigError(f"reset_pool={size} must be at most {MAX_STARTS}; try 1024")
    return size


def renew(env: Env, params: Any, starts: PyTree, key: Key, update: Array, num_steps: int) -> PyTree:
    """Replace the oldest rows of a pool by new resets: a sixteenth, or of short rollouts one for 16 steps.

    Args:
      env, params: of the resets.
      starts: of `make_starts`.
      key: one key.
      update: [] int32, updates before this one: the rows follow on those of the last update.
      num_steps: steps of all worlds in the rollout of an update.
    """
    size = jax.tree.leaves(starts)[0].shape[0]
    count = max(1, min(size, num_steps) // STEPS_OF_A_RESET)
    rows = (update % size * count + jnp.arange(count, dtype=jnp.int32)) % size
    new = make_starts(env, params, jax.random.split(key, count))
    return jax.tree.map(lambda old, x: old.at[rows].set(x), starts, new)


def _innermost(env: Env) -> Env:
    while isinstance(env, Wrapper):
        env = env.env
    return env


def _with_new_keys(state: PyTree, key: Key) -> PyTree:
    """The state with other typed keys of the same kind."""
    leaves, structure = jax.tree.flatten(state)
    for number, leaf in enumerate(leaves):
        if leaf.dtype == key.dtype:
            leaves[number] = jax.random.split(jax.random.fold_in(key, number), leaf.shape)
    return jax.tree.unflatten(structure, leaves)

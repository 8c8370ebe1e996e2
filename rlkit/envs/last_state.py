"""The state that a step leads to, before the reset that follows where it ends the episode."""

from dataclasses import dataclass, replace

import jax

from rlkit.envs.adapter import Adapter, cast_like
from rlkit.envs.wrappers.base import Step, Wrapper
from rlkit.types import Env, Key, PyTree

LAST_STATE = "last_state"  # in the info of a step


def keep_last_state(env: Env) -> Env:
    """Return the same environment, whose infos have `LAST_STATE` where it is one of this package's adapters.

    That is the adapter's own state, without those of wrappers around it. The episodes are the same.
    """
    if isinstance(env, Wrapper):
        return replace(env, env=keep_last_state(env.env))
    return _KeepsLastState(env) if isinstance(env, Adapter) and type(env).step is Adapter.step else env


@dataclass(frozen=True)
class _KeepsLastState(Wrapper):
    """An adapter that takes each step once more without the reset, which XLA computes once."""

    env: Adapter

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> Step:
        obs, next_state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        last = self.env.advance(jax.random.split(key)[0], state, action, params)[1]
        last = jax.tree.map(lambda new, old: cast_like(old, new), next_state, last)
        return obs, next_state, reward, terminated, truncated, info | {LAST_STATE: last}

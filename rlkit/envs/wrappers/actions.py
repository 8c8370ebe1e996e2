"""Wrappers that change actions, and the steps that an action or an episode takes."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit._mesh import vary_like
from rlkit.envs.wrappers.base import Step, Wrapper, check_count, world_done
from rlkit.names import OWN_DONE, OWN_REWARD
from rlkit.spaces import Box, Space, zeros
from rlkit.types import Array, ConfigError, Key, PyTree

MAX_REPEATS = 2**16  # each has a key
MAX_STEPS = 2**31 - 1  # the steps of an episode are counted in int32


@dataclass(frozen=True)
class ActionRepeat(Wrapper):
    """Takes each action up to `n` times and sums the rewards; it stops at the end of an episode."""

    n: int

    def __post_init__(self):
        check_count("action_repeat", self.n, MAX_REPEATS)

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        keys = jax.random.split(key, self.n)

        def repeat(result: Step, key: Key) -> tuple[Step, None]:
            _, state, total, terminated, truncated, info_before = result
            done = world_done(terminated | truncated)
            obs, state, reward, *ends, info = self.env.step(key, state, action, params)
            if OWN_REWARD in info:
                info = info | {OWN_REWARD: info_before[OWN_REWARD] + info[OWN_REWARD]}
            new = (obs, state, total + reward, *ends, info)
            return jax.tree.map(lambda old, new: jnp.where(done, old, new), result, new), None

        first = vary_like(self.env.step(keys[0], state, action, params), keys)
        return jax.lax.scan(repeat, first, keys[1:])[0]


class ClipAction(Wrapper):
    """Clips continuous actions to their bounds; the action space of the wrapper is unbounded."""

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        space = self._box(params)
        clip = self.each(lambda x: jnp.clip(x, space.low, space.high))
        return self.env.step(key, state, clip(action), params)

    def action_space(self, params: Any) -> Space:
        space = self._box(params)
        return Box(-np.inf, np.inf, space.shape, space.dtype)

    def _box(self, params: Any) -> Box:
        space = self.env.action_space(params)
        if not isinstance(space, Box):
            raise ConfigError(f"wrapper clip_action needs continuous actions, got {space}; leave it out")
        return space


class StickyActionState(struct.PyTreeNode):
    """State of StickyAction."""

    env_state: Any
    action: PyTree  # the previous action, or those of all players, [P, ...]
    at_start: Array  # [] bool, true before the first action of an episode


@dataclass(frozen=True)
class StickyAction(Wrapper):
    """Repeats the previous action with probability `p` (Machado et al. 2018, section 5.2).

    The first action of an episode is never replaced.
    """

    p: float

    def __post_init__(self):
        if not 0 <= self.p <= 1:
            raise ConfigError(f"wrapper sticky_action: p={self.p} must be a probability in [0, 1]; try 0.25")

    def reset(self, key: Key, params: Any) -> tuple[PyTree, StickyActionState]:
        obs, env_state = self.env.reset(key, params)
        action = zeros(self.env.action_space(params))
        if (players := self.num_players) > 1:
            action = jax.tree.map(lambda x: jnp.broadcast_to(x, (players, *x.shape)), action)
        return obs, StickyActionState(env_state, action, jnp.array(True))

    def step(self, key: Key, state: StickyActionState, action: PyTree, params: Any) -> Step:
        stick_key, env_key = jax.random.split(key)
        players = () if self.num_players == 1 else (self.num_players,)
        stick = jax.random.bernoulli(stick_key, self.p, players) & ~state.at_start
        action = self.each(_select)(stick, state.action, action)
        obs, env_state, reward, terminated, truncated, info = self.env.step(env_key, state.env_state, action, params)
        state = StickyActionState(env_state, action, world_done(terminated | truncated))
        return obs, state, reward, terminated, truncated, info


def _select(stick: Array, old: PyTree, new: PyTree) -> PyTree:
    """The old action where `stick` is true, else the new one, in the old one's dtypes."""
    return jax.tree.map(lambda old, new: jnp.where(stick, old, jnp.asarray(new, old.dtype)), old, new)


class TimeLimitState(struct.PyTreeNode):
    """State of TimeLimit."""

    env_state: Any
    elapsed: Array  # [] int32, steps of this episode so far


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Truncates an episode at its `n`-th step and resets the environment."""

    n: int

    def __post_init__(self):
        check_count("time_limit", self.n, MAX_STEPS)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, TimeLimitState]:
        obs, env_state = self.env.reset(key, params)
        return obs, TimeLimitState(env_state, jnp.zeros((), jnp.int32))

    def step(self, key: Key, state: TimeLimitState, action: PyTree, params: Any) -> Step:
        step_key, reset_key = jax.random.split(key)
        obs, env_state, reward, terminated, truncated, info = self.env.step(step_key, state.env_state, action, params)
        elapsed = state.elapsed + 1
        expired = elapsed >= self.n
        ended = info.get(OWN_DONE, terminated | truncated)
        done = world_done(ended)
        reset = expired & ~done  # where the episode ended anyway, the environment has been reset
        obs, env_state = jax.tree.map(
            lambda new, old: jnp.where(reset, new, old), self.env.reset(reset_key, params), (obs, env_state)
        )
        truncated |= expired
        ended |= expired
        if OWN_DONE in info:
            info = info | {OWN_DONE: ended}
        state = TimeLimitState(env_state, jnp.where(done | expired, 0, elapsed))
        return obs, state, reward, terminated, truncated, info

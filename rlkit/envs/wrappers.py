"""Wrappers: environments that change another environment, in the same protocol; `params` are passed through.

Wrappers are correct across the automatic reset: `info["final_observation"]` is wrapped like any other observation, and
the first observation of an episode does not depend on the episode before. A wrapper with a state of its own keeps the
state of the wrapped environment in the field `env_state`.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit._mesh import vary_like
from rlkit.envs._spaces import flat_bounds, flatten, map_obs, map_space, without_mask
from rlkit.names import ACTION_MASK
from rlkit.spaces import Box, Dict, Space, zeros
from rlkit.types import Array, ConfigError, Env, Key, PyTree

# The most that a wrapper's `n` may be: stacked frames are operands of one concatenation, repeated steps have a key
# each, and the steps of an episode are counted in int32.
MAX_FRAMES, MAX_REPEATS, MAX_STEPS = 1024, 2**16, 2**31 - 1
MAX_NUMBERS = 2**26  # of a stacked observation, whose bounds are arrays on the host

Step = tuple[PyTree, Any, Array, Array, Array, dict[str, Any]]


@dataclass(frozen=True)
class Wrapper:
    """Base class of the wrappers; it passes everything through to `env`."""

    env: Env

    @property
    def name(self) -> str:
        return getattr(self.env, "name", type(self.env).__name__)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        """Start an episode: -> obs, state."""
        return self.env.reset(key, params)

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        """Take one step: -> obs, state, reward, terminated, truncated, info, as in `rlkit.types.Env`."""
        return self.env.step(key, state, action, params)

    def observation_space(self, params: Any) -> Space:
        return self.env.observation_space(params)

    def action_space(self, params: Any) -> Space:
        return self.env.action_space(params)


class _ObservationWrapper(Wrapper):
    """Applies the stateless function `_observe` to every observation."""

    def _observe(self, obs: PyTree, params: Any) -> PyTree:
        raise NotImplementedError

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        obs, state = self.env.reset(key, params)
        return self._observe(obs, params), state

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = info | {"final_observation": self._observe(info["final_observation"], params)}
        return self._observe(obs, params), state, reward, terminated, truncated, info


class Flatten(_ObservationWrapper):
    """Flattens observations to one vector [D] float32: boxes raveled, discrete parts one-hot, in the leaves' order.

    Where there is an action mask, the observation becomes {"action_mask": the mask, "obs": [D]}. Pixels keep their
    values of 0 to 255, which networks divide by 255 only where they are uint8: leave images as they are.
    """

    def _observe(self, obs: PyTree, params: Any) -> PyTree:
        space, mask = without_mask(self.env.observation_space(params))
        if mask is None:
            return flatten(space, obs)
        return {ACTION_MASK: obs[ACTION_MASK], "obs": flatten(space, obs)}

    def observation_space(self, params: Any) -> Space:
        space, mask = without_mask(self.env.observation_space(params))
        low, high = (np.concatenate(bounds) for bounds in zip(*flat_bounds(space), strict=True))
        flat = Box(low, high)
        return flat if mask is None else Dict({ACTION_MASK: mask, "obs": flat})


@dataclass(frozen=True)
class HideVelocity(_ObservationWrapper):
    """Removes the velocities from a classic-control observation, so that the task needs memory.

    Raises ConfigError for an environment that is not in the table. It must be the innermost wrapper.
    """

    POSITIONS = {  # noqa: RUF012 a constant; by environment: (size of an observation, indices of positions and angles)
        "CartPole-v1": (4, (0, 2)),
        "Acrobot-v1": (6, (0, 1, 2, 3)),
        "MountainCar-v0": (2, (0,)),
        "MountainCarContinuous-v0": (2, (0,)),
        "Pendulum-v1": (3, (0, 1)),
    }

    def __post_init__(self):
        if self.name not in self.POSITIONS:
            raise ConfigError(
                f"wrapper hide_velocity does not support env={self.name!r}; use it with {', '.join(self.POSITIONS)}"
            )

    def _observe(self, obs: PyTree, params: Any) -> PyTree:
        return obs[np.array(self.POSITIONS[self.name][1])]

    def observation_space(self, params: Any) -> Space:
        space = self.env.observation_space(params)
        size, positions = self.POSITIONS[self.name]
        if not isinstance(space, Box) or space.shape != (size,):
            raise ConfigError(f"wrapper hide_velocity expects {size} observations, got {space}; put it first")
        return Box(space.low[list(positions)], space.high[list(positions)], dtype=space.dtype)


class FrameStackState(struct.PyTreeNode):
    """State of FrameStack."""

    env_state: Any
    frames: PyTree  # leaves [..., n * C], the last n observations along their last axis, newest last


@dataclass(frozen=True)
class FrameStack(Wrapper):
    """Concatenates the last `n` observations along their last axis, newest last: [..., C] becomes [..., n * C].

    An episode begins with its first observation n times. An action mask is not stacked.
    """

    n: int

    def __post_init__(self):
        _check_count("frame_stack", self.n, MAX_FRAMES)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, FrameStackState]:
        obs, env_state = self.env.reset(key, params)
        frames = self._fill(obs)
        return frames, FrameStackState(env_state, frames)

    def step(self, key: Key, state: FrameStackState, action: PyTree, params: Any) -> Step:
        obs, env_state, reward, terminated, truncated, info = self.env.step(key, state.env_state, action, params)
        final = self._push(state.frames, info["final_observation"])
        done = terminated | truncated
        frames = jax.tree.map(lambda new, old: jnp.where(done, new, old), self._fill(obs), final)
        info = info | {"final_observation": final}
        return frames, FrameStackState(env_state, frames), reward, terminated, truncated, info

    def observation_space(self, params: Any) -> Space:
        return map_space(self._space, self.env.observation_space(params))

    def _space(self, space: Space) -> Space:
        if not isinstance(space, Box) or not space.shape:
            raise ConfigError(f"wrapper frame_stack needs arrays with an axis, got {space}; put flatten before it")
        if self.n * math.prod(space.shape) > MAX_NUMBERS:
            raise ConfigError(
                f"wrapper frame_stack: n={self.n} makes observations of {self.n * math.prod(space.shape)} numbers, and "
                f"at most {MAX_NUMBERS} are supported; stack fewer"
            )
        low, high = (np.concatenate([bound] * self.n, -1) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype)

    def _fill(self, obs: PyTree) -> PyTree:
        return map_obs(lambda x: jnp.concatenate([x] * self.n, -1), obs)

    def _push(self, frames: PyTree, obs: PyTree) -> PyTree:
        return map_obs(lambda new, old: jnp.concatenate([old[..., new.shape[-1] :], new], -1), obs, frames)


@dataclass(frozen=True)
class ActionRepeat(Wrapper):
    """Takes each action up to `n` times and sums the rewards; it stops at the end of an episode."""

    n: int

    def __post_init__(self):
        _check_count("action_repeat", self.n, MAX_REPEATS)

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        keys = jax.random.split(key, self.n)

        def repeat(result: Step, key: Key) -> tuple[Step, None]:
            _, state, total, terminated, truncated, _ = result
            done = terminated | truncated
            obs, state, reward, *rest = self.env.step(key, state, action, params)
            new = (obs, state, total + reward, *rest)
            return jax.tree.map(lambda old, new: jnp.where(done, old, new), result, new), None

        first = vary_like(self.env.step(keys[0], state, action, params), keys)
        return jax.lax.scan(repeat, first, keys[1:])[0]


class ClipAction(Wrapper):
    """Clips continuous actions to their bounds; the action space of the wrapper is unbounded."""

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        space = self._box(params)
        return self.env.step(key, state, jnp.clip(action, space.low, space.high), params)

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
    action: PyTree  # the previous action
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
        return obs, StickyActionState(env_state, zeros(self.env.action_space(params)), jnp.array(True))

    def step(self, key: Key, state: StickyActionState, action: PyTree, params: Any) -> Step:
        stick_key, env_key = jax.random.split(key)
        stick = jax.random.bernoulli(stick_key, self.p) & ~state.at_start
        action = jax.tree.map(lambda old, new: jnp.where(stick, old, jnp.asarray(new, old.dtype)), state.action, action)
        obs, env_state, reward, terminated, truncated, info = self.env.step(env_key, state.env_state, action, params)
        state = StickyActionState(env_state, action, terminated | truncated)
        return obs, state, reward, terminated, truncated, info


class TimeLimitState(struct.PyTreeNode):
    """State of TimeLimit."""

    env_state: Any
    elapsed: Array  # [] int32, steps of this episode so far


@dataclass(frozen=True)
class TimeLimit(Wrapper):
    """Truncates an episode at its `n`-th step and resets the environment."""

    n: int

    def __post_init__(self):
        _check_count("time_limit", self.n, MAX_STEPS)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, TimeLimitState]:
        obs, env_state = self.env.reset(key, params)
        return obs, TimeLimitState(env_state, jnp.zeros((), jnp.int32))

    def step(self, key: Key, state: TimeLimitState, action: PyTree, params: Any) -> Step:
        step_key, reset_key = jax.random.split(key)
        obs, env_state, reward, terminated, truncated, info = self.env.step(step_key, state.env_state, action, params)
        elapsed = state.elapsed + 1
        expired = elapsed >= self.n
        reset = expired & ~(terminated | truncated)  # where the episode ended anyway, the environment has been reset
        obs, env_state = jax.tree.map(
            lambda new, old: jnp.where(reset, new, old), self.env.reset(reset_key, params), (obs, env_state)
        )
        truncated |= expired
        state = TimeLimitState(env_state, jnp.where(terminated | truncated, 0, elapsed))
        return obs, state, reward, terminated, truncated, info


def _check_count(wrapper: str, n: int, most: int) -> None:
    """Raise a ConfigError unless 1 <= n <= most."""
    if n < 1:
        raise ConfigError(f"wrapper {wrapper}: n={n} must be at least 1; try 1")
    if n > most:
        raise ConfigError(f"wrapper {wrapper}: n={str(n)[:20]} must be at most {most}; try {most}")

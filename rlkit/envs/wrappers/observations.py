"""Wrappers that change observations."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlkit.envs._spaces import UNCHANGED, flat_bounds, flatten, map_obs, map_space, split_special
from rlkit.envs.wrappers.base import Step, Wrapper, check_count, world_done
from rlkit.names import MAX_FRAMES, MAX_NUMBERS, stack_axis, stacked_shape
from rlkit.spaces import Box, Dict, Space
from rlkit.types import Array, ConfigError, Key, PyTree


class _ObservationWrapper(Wrapper):
    """Applies the stateless function `_observe` to every observation."""

    def _observe(self, obs: PyTree, params: Any) -> PyTree:
        raise NotImplementedError

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        obs, state = self.env.reset(key, params)
        return self.each(lambda x: self._observe(x, params))(obs), state

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        observe = self.each(lambda x: self._observe(x, params))
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        info = info | {"final_observation": observe(info["final_observation"])}
        return observe(obs), state, reward, terminated, truncated, info


class Flatten(_ObservationWrapper):
    """Flattens observations to one vector [D] float32: boxes raveled, discrete parts one-hot, in the leaves' order.

    Where there is an action mask, a `game_state` or a part `privileged`, the observation becomes a dict: the leaf `obs`
    [D], the mask as `action_mask` and `game_state` unchanged, and the part, flattened as well, as `privileged`, which
    networks that act do without. Bytes keep their values as floats, which networks do not scale to 0 ... 1 as they
    scale uint8: leave images as they are.
    """

    def _observe(self, obs: PyTree, params: Any) -> PyTree:
        space, special = split_special(self.env.observation_space(params))
        flat = flatten(space, obs)
        if not special:
            return flat
        kept = {name: obs[name] if name in UNCHANGED else flatten(s, obs[name]) for name, s in special.items()}
        return kept | {"obs": flat}

    def observation_space(self, params: Any) -> Space:
        space, special = split_special(self.env.observation_space(params))
        flat = _flat_box(space)
        if not special:
            return flat
        kept = {name: s if name in UNCHANGED else _flat_box(s) for name, s in special.items()}
        return Dict(kept | {"obs": flat})


def _flat_box(space: Space) -> Box:
    """The space of what `flatten` returns; without a leaf, of no numbers."""
    low, high = (np.concatenate(bounds) for bounds in zip(*flat_bounds(space), strict=True))
    return Box(low, high)


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
    frames: PyTree  # leaves [..., n * C], or [n * C, H, W], the last n observations, newest last


@dataclass(frozen=True)
class FrameStack(Wrapper):
    """Concatenates the last `n` observations along their last axis, newest last: [..., C] becomes [..., n * C].

    Images whose channels are first are concatenated along those: [C, H, W] becomes [n * C, H, W]. `image_axes`, the
    place of the channels of arrays of three axes, is that of an agent's Config: "last", "first" or "auto". An episode
    begins with its first observation n times. An action mask is not stacked.
    """

    n: int
    image_axes: str = "auto"

    def __post_init__(self):
        check_count("frame_stack", self.n, MAX_FRAMES)

    def reset(self, key: Key, params: Any) -> tuple[PyTree, FrameStackState]:
        obs, env_state = self.env.reset(key, params)
        frames = self.each(self._fill)(obs)
        return frames, FrameStackState(env_state, frames)

    def step(self, key: Key, state: FrameStackState, action: PyTree, params: Any) -> Step:
        obs, env_state, reward, terminated, truncated, info = self.env.step(key, state.env_state, action, params)
        final = self.each(self._push)(state.frames, info["final_observation"])
        done = world_done(terminated | truncated)
        frames = jax.tree.map(lambda new, old: jnp.where(done, new, old), self.each(self._fill)(obs), final)
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
        try:
            stacked_shape(space.shape, self.n, self.image_axes)
        except ValueError as error:
            raise ConfigError(f"wrapper frame_stack needs channels that stay in their place, got {error}") from None
        axis = stack_axis(space.shape, self.image_axes)
        low, high = (np.concatenate([bound] * self.n, axis) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype)

    def _fill(self, obs: PyTree) -> PyTree:
        return map_obs(lambda x: jnp.concatenate([x] * self.n, stack_axis(x.shape, self.image_axes)), obs)

    def _push(self, frames: PyTree, obs: PyTree) -> PyTree:
        def leaf(new: Array, old: Array) -> Array:
            axis = stack_axis(new.shape, self.image_axes)
            return jnp.concatenate([jax.lax.slice_in_dim(old, new.shape[axis], None, axis=axis), new], axis)

        return map_obs(leaf, obs, frames)


class PreviousActionReward(Wrapper):
    """Adds the previous action and its reward to the observation, for agents with memory.

    R2D2 (Kapturowski et al. 2019) and RL² (Duan et al. 2016) see both. The observation becomes a dict with the leaves
    `previous_action` [D] float32, boxes raveled and discrete parts one-hot, and `previous_reward` [1] float32, which
    are 0 at the start of an episode. An observation that is not a dict becomes the leaf `obs` of one. Put it around
    wrappers that change actions or rewards, so that it shows what the agent chose and got.
    """

    def reset(self, key: Key, params: Any) -> tuple[PyTree, Any]:
        obs, state = self.env.reset(key, params)
        action = jnp.zeros(self._action_bounds(params)[0].shape, jnp.float32)
        return self.each(lambda x: self._with_previous(x, action, jnp.zeros((), jnp.float32)))(obs), state

    def step(self, key: Key, state: Any, action: PyTree, params: Any) -> Step:
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        space, with_previous = self.env.action_space(params), self.each(self._with_previous)
        previous = self.each(lambda x: flatten(space, x))(action), reward
        info = info | {"final_observation": with_previous(info["final_observation"], *previous)}
        done = world_done(terminated | truncated)
        previous = (jnp.where(done, 0.0, x) for x in previous)
        return with_previous(obs, *previous), state, reward, terminated, truncated, info

    def observation_space(self, params: Any) -> Space:
        space = self.env.observation_space(params)
        low, high = self._action_bounds(params)
        leaves = space.spaces if isinstance(space, Dict) else {"obs": space}
        added = {"previous_action": Box(np.minimum(low, 0), np.maximum(high, 0))}
        added["previous_reward"] = Box(-np.inf, np.inf, (1,))
        if there := sorted(leaves.keys() & added):
            raise ConfigError(f"wrapper previous_action_reward: the observation has {there[0]} already; use it once")
        return Dict({**leaves, **added})

    def _action_bounds(self, params: Any) -> list[np.ndarray]:
        bounds = flat_bounds(self.env.action_space(params))
        return [np.concatenate(parts) for parts in zip(*bounds, strict=True)]

    def _with_previous(self, obs: PyTree, action: Array, reward: Array) -> PyTree:
        leaves = obs if isinstance(obs, dict) else {"obs": obs}
        return {**leaves, "previous_action": action, "previous_reward": reward.astype(jnp.float32)[None]}

"""Wrappers of environments with Gymnasium's interface, by name, as `rlkit.envs.wrappers` has them for those in JAX.

They keep to that interface alone, since an environment of the user's own need not be a `gymnasium.Env`, as
`gymnasium.Wrapper` expects. What violates the contract is passed on, for the contract to report it.
"""

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rlkit.hosts.worker.contract import Violation
from rlkit.names import ACTION_MASK, MAX_NUMBERS, stack_axis, stacked_shape


class Wrapper:
    """Base class of the wrappers; it passes everything through to `env`."""

    def __init__(self, env: Any):
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.render_mode = getattr(env, "metadata", {}), getattr(env, "render_mode", None)

    @property
    def unwrapped(self) -> Any:
        """The innermost environment."""
        return getattr(self.env, "unwrapped", self.env)

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def reset(self, **arguments: Any) -> Any:
        """Start an episode: -> obs, info."""
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        """Take one step: -> obs, reward, terminated, truncated, info."""
        return self.env.step(action)


class FrameStack(Wrapper):
    """Concatenates the last `n` observations along their last axis, newest last: [..., C] becomes [..., n * C].

    Images whose channels are first are concatenated along those: [C, H, W] becomes [n * C, H, W]. `image_axes` is the
    place of the channels of arrays of three axes: "last", "first" or "auto". An episode begins with its first
    observation n times. An action mask is not stacked.
    """

    def __init__(self, env: Any, n: int, image_axes: str = "auto"):
        super().__init__(env)
        self.n, self.image_axes, self.space = n, image_axes, env.observation_space
        self.observation_space = _stacked_space(self.space, n, image_axes)

    def reset(self, **arguments: Any) -> Any:
        obs, *rest = self.env.reset(**arguments)
        self.frames = [copy.deepcopy(obs)] * self.n
        return _stack(self.space, self.frames, self.image_axes), *rest

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.frames = [
            *self.frames[1:],
            copy.deepcopy(obs),
        ]  # the environment may write the next one into the same array
        return _stack(self.space, self.frames, self.image_axes), *rest


class ActionRepeat(Wrapper):
    """Takes each action up to `n` times and adds up the rewards; it stops at the end of an episode."""

    def __init__(self, env: Any, n: int):
        super().__init__(env)
        self.n = n

    def step(self, action: Any) -> Any:
        # Copies, as the environment may write into the action, and the next reward into the same array.
        obs, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
        total = copy.copy(reward)
        for _ in range(self.n - 1):
            if terminated or truncated:
                break
            obs, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
            total = total + reward
        return obs, total, terminated, truncated, info


class TimeLimit(Wrapper):
    """Truncates an episode at its `n`-th step."""

    def __init__(self, env: Any, n: int):
        super().__init__(env)
        self.n, self.elapsed = n, 0

    def reset(self, **arguments: Any) -> Any:
        self.elapsed = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.elapsed += 1
        return obs, reward, terminated, True if self.elapsed >= self.n else truncated, info


class ClipReward(Wrapper):
    """Clips rewards to [low, high], for learning: scores are of the unchanged ones. NaN stays NaN."""

    rlkit_for_learning = True

    def __init__(self, env: Any, low: float, high: float):
        super().__init__(env)
        self.low, self.high = low, high

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, min(max(reward, self.low), self.high), *rest


class ScaleReward(Wrapper):
    """Multiplies rewards by a factor, for learning: scores are of the unchanged ones."""

    rlkit_for_learning = True

    def __init__(self, env: Any, factor: float):
        super().__init__(env)
        self.factor = factor

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, reward * self.factor, *rest


class EndOnLifeLoss(Wrapper):
    """Ends the episode of an Atari game where a life is lost, for learning: scores are of whole games.

    A reset then goes on with the game, by an action that does nothing, as in DQN (Mnih et al. 2015). A seed, or the end
    of the game, starts a new one.
    """

    rlkit_for_learning = True

    def __init__(self, env: Any):
        super().__init__(env)
        self.lives, self.over = 0, True

    def reset(self, *, seed: int | None = None, **arguments: Any) -> Any:
        if seed is None and not self.over:
            obs, _, terminated, truncated, info = self.env.step(0)
            self.over = terminated or truncated
        if seed is not None or self.over:
            obs, info = self.env.reset(seed=seed, **arguments)
            self.over = False
        self.lives = self.unwrapped.ale.lives()
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.over, before, self.lives = terminated or truncated, self.lives, self.unwrapped.ale.lives()
        return obs, reward, terminated or self.lives < before, truncated, info


class FireReset(Wrapper):
    """Presses FIRE where an episode begins, in Atari games that have it: some, such as Breakout, wait for it.

    Outside of `EndOnLifeLoss` that is after each lost life as well.
    """

    def __init__(self, env: Any):
        super().__init__(env)
        meanings = self.unwrapped.get_action_meanings()
        self.fire = meanings.index("FIRE") if "FIRE" in meanings else None

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        if self.fire is None:
            return obs, info
        obs, _, terminated, truncated, info = self.env.step(self.fire)
        return self.env.reset() if terminated or truncated else (obs, info)


class GrayStack(Wrapper):
    """The last `n` gray images [H, W] as the channels of one [H, W, n], newest last; each of them a new array.

    An episode begins with its first image n times.
    """

    def __init__(self, env: Any, n: int):
        import cv2  # pyright: ignore[reportMissingImports]
        from gymnasium import spaces

        super().__init__(env)
        self.merge, self.n, space = cv2.merge, n, env.observation_space
        low, high = (np.repeat(bound[..., None], n, -1) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        self.frames = [obs] * self.n
        return self._stacked(), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self.frames = [*self.frames[1:], obs]
        return self._stacked(), *rest

    def _stacked(self) -> Any:
        return self.merge(self.frames).reshape(self.observation_space.shape)


class PreviousActionReward(Wrapper):
    """Adds the leaves `previous_action` [D] and `previous_reward` [1], float32, to the observation.

    Both are 0 at the start of an episode. An observation that is not a dict becomes the leaf `obs` of one.
    """

    def __init__(self, env: Any):
        from gymnasium import spaces

        super().__init__(env)
        self.flatten = partial(spaces.flatten, env.action_space)
        action = spaces.flatten_space(env.action_space)
        assert isinstance(action, spaces.Box)
        self.no_action = np.zeros(action.shape, np.float32)
        low, high = action.low.astype(np.float32), action.high.astype(np.float32)
        self.is_dict = isinstance(env.observation_space, spaces.Dict)
        leaves = dict(env.observation_space.spaces) if self.is_dict else {"obs": env.observation_space}
        added: dict[str, Any] = {
            "previous_action": spaces.Box(np.minimum(low, 0), np.maximum(high, 0)),
            "previous_reward": spaces.Box(-np.inf, np.inf, (1,)),
        }
        if leaves.keys() & added:
            raise Violation("wrapper previous_action_reward", f"observations without {min(added)}", list(leaves))
        self.observation_space = spaces.Dict(leaves | added)

    def reset(self, **arguments: Any) -> Any:
        obs, *rest = self.env.reset(**arguments)
        return self._with_previous(obs, self.no_action, 0.0), *rest

    def step(self, action: Any) -> Any:
        flat = self.flatten(action)  # a copy, made before the environment may write into the action
        obs, reward, *rest = self.env.step(action)
        return self._with_previous(obs, flat, reward), reward, *rest

    def _with_previous(self, obs: Any, action: Any, reward: Any) -> Any:
        leaves = obs if self.is_dict else {"obs": obs}
        if not isinstance(leaves, dict):
            return leaves
        action, reward = (np.array(x, np.float32) for x in (action, [reward]))
        return leaves | {"previous_action": action, "previous_reward": reward}


class ActionMask(Wrapper):
    """Adds the leaf `action_mask`, which marks the legal actions, from `info` or from a method of the environment.

    With "info" it is `info["action_mask"]` of each reset and step, as Gymnasium's Taxi has it; with "method" it is what
    the method `action_masks` of the environment or of a wrapper returns, as sb3-contrib expects it. At the end of an
    episode there may be none. An observation that is not a dict becomes the leaf `obs` of one.
    """

    def __init__(self, env: Any, source: str):
        from gymnasium import spaces

        super().__init__(env)
        self.masks = method(env, "action_masks") if source == "method" else None
        if source == "method" and self.masks is None:
            expected = "an environment with the method action_masks, for action_mask:method"
            raise Violation("the constructor", expected, type(env))
        if isinstance(env.action_space, spaces.Discrete | spaces.MultiDiscrete):
            self.size = int(spaces.flatdim(env.action_space))
        else:
            raise Violation("wrapper action_mask", "actions that are Discrete or MultiDiscrete", env.action_space)
        self.is_dict = isinstance(env.observation_space, spaces.Dict)
        leaves: dict[str, Any] = dict(env.observation_space.spaces) if self.is_dict else {"obs": env.observation_space}
        if ACTION_MASK in leaves:
            raise Violation("wrapper action_mask", "observations without a mask", list(leaves))
        mask: dict[str, Any] = {ACTION_MASK: spaces.MultiBinary(self.size)}
        self.observation_space = spaces.Dict(leaves | mask)

    def reset(self, **arguments: Any) -> Any:
        obs, info = self.env.reset(**arguments)
        return self._with_mask("reset", obs, info, done=False), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask("step", obs, info, done=terminated or truncated), reward, terminated, truncated, info

    def _with_mask(self, call: str, obs: Any, info: Any, *, done: bool) -> Any:
        leaves = obs if self.is_dict else {"obs": obs}
        if not isinstance(leaves, dict):
            return leaves
        mask = info.get(ACTION_MASK) if self.masks is None else self.masks()
        if mask is None and not done:
            raise Violation(f"info of {call}", f"{ACTION_MASK}, as the wrapper action_mask:info needs it", sorted(info))
        mask = np.ones(self.size) if mask is None else np.asarray(mask)
        if mask.size != self.size:
            raise Violation(f"{ACTION_MASK} of {call}", f"{self.size} entries, one for each action", mask.size)
        return leaves | {ACTION_MASK: mask.ravel().astype(np.int8)}


def mask_source(env: Any, info: dict[str, Any]) -> str | None:
    """Return where an environment has a mask of its actions, one of `MASK_SOURCES`; None where it has none."""
    if info.get(ACTION_MASK) is not None:
        return "info"
    return "method" if method(env, "action_masks") else None


def method(env: Any, name: str) -> Any:
    """Return the method of the outermost wrapper that has it, or of the environment; None without one."""
    inner = env
    while inner is not None:
        if callable(found := getattr(inner, name, None)):
            return found
        inner = getattr(inner, "__dict__", {}).get("env")
    found = getattr(getattr(env, "unwrapped", None), name, None)  # inside of wrappers that call it something else
    return found if callable(found) else None


def _stacked_space(space: Any, n: int, image_axes: str) -> Any:
    """The space of n observations, concatenated along their last axis or the channels of an image."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return spaces.Dict(
            {
                name: child if name == ACTION_MASK else _stacked_space(child, n, image_axes)
                for name, child in space.spaces.items()
            }
        )
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(_stacked_space(child, n, image_axes) for child in space.spaces))
    if not isinstance(space, spaces.Box) or not space.shape:
        raise Violation("wrapper frame_stack", "observations that are arrays with an axis", space)
    if n * math.prod(space.shape) > MAX_NUMBERS:
        raise Violation("wrapper frame_stack", f"at most {MAX_NUMBERS} numbers", f"{n} times {math.prod(space.shape)}")
    try:
        stacked_shape(space.shape, n, image_axes)
    except ValueError as error:
        raise Violation("wrapper frame_stack", "channels that stay in their place", error) from None
    axis = stack_axis(space.shape, image_axes)
    low, high = (np.concatenate([bound] * n, axis) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=space.dtype.type)  # pyright: ignore[reportArgumentType]


def _stack(space: Any, frames: list[Any], image_axes: str) -> Any:
    """The observations of `space` in `frames`, concatenated as in `_stacked_space`; the last one if they cannot be."""
    last = frames[-1]
    children = getattr(space, "spaces", None)
    if isinstance(children, Mapping):
        if not isinstance(last, dict) or last.keys() != children.keys():
            return last
        return {
            name: last[name] if name == ACTION_MASK else _stack(child, [frame[name] for frame in frames], image_axes)
            for name, child in children.items()
        }
    if children is not None:
        if not isinstance(last, tuple | list) or len(last) != len(children):
            return last
        return tuple(_stack(child, [frame[i] for frame in frames], image_axes) for i, child in enumerate(children))
    if not isinstance(last, np.ndarray) or last.shape != space.shape:
        return last
    return np.concatenate(frames, stack_axis(space.shape, image_axes))

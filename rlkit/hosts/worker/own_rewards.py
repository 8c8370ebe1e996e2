"""An environment's own rewards and episodes, inside of wrappers that change them for learning only.

Scores are of these. A wrapper counts as part of the environment unless its class has `rlkit_for_learning = True`, as
this package's `scale_reward` and `clip_reward` have, or it is one of those named here.
"""

from typing import Any

# By the name of the library and of the class, in whatever module of it the class is.
_FOR_LEARNING = {
    ("gymnasium", "ClipReward"),
    ("gymnasium", "NormalizeReward"),
    ("stable_baselines3", "ClipRewardEnv"),
    ("stable_baselines3", "EpisodicLifeEnv"),
}


class Recorder:
    """An environment that adds up its rewards and counts its resets; everything else is the environment's.

    It also records a vector environment, whose rewards are arrays [N], and one of several players, where they are a
    dict by agent.
    """

    def __init__(self, env: Any):
        self.env, self.reward, self.num_resets = env, 0.0, 0

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while a copy is made, before it has one
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **arguments: Any) -> Any:
        """Start an episode."""
        self.reward, self.num_resets = 0.0, self.num_resets + 1
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        """Take one step."""
        result = self.env.step(action)
        self.reward = _sum(self.reward, result[1])
        return result

    def take_reward(self) -> Any:
        """Return the sum of the rewards since the last call, or since the episode began."""
        reward, self.reward = self.reward, 0.0
        return reward

    def take_reset(self) -> bool:
        """Return true where the environment has been reset since the last call."""
        count, self.num_resets = self.num_resets, 0
        return count > 0


def _sum(total: Any, reward: Any) -> Any:
    if not isinstance(reward, dict):
        return total + reward
    return (total or {}) | {agent: (total or {}).get(agent, 0.0) + x for agent, x in reward.items()}


def record(env: Any) -> Recorder | None:
    """Put a `Recorder` into an environment, inside of all wrappers for learning; None where there are none."""
    outer, wrapper = None, env
    while wrapper is not None:
        if _is_for_learning(type(wrapper)):
            outer = wrapper
        wrapper = getattr(wrapper, "__dict__", {}).get("env")
    if outer is None:
        return None
    outer.env = Recorder(outer.env)
    return outer.env


def _is_for_learning(wrapper: type) -> bool:
    if getattr(wrapper, "rlkit_for_learning", False):
        return True
    return any((kind.__module__.partition(".")[0], kind.__name__) in _FOR_LEARNING for kind in wrapper.__mro__)

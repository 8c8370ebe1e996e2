"""Wrappers: environments that change another environment, in the same protocol; `params` are passed through.

Wrappers are correct across the automatic reset: `info["final_observation"]` is wrapped like any other observation, and
the first observation of an episode does not depend on the episode before. A wrapper with a state of its own keeps the
state of the wrapped environment in the field `env_state`.
"""

from rlkit.envs.wrappers.actions import (
    ActionRepeat,
    ClipAction,
    StickyAction,
    StickyActionState,
    TimeLimit,
    TimeLimitState,
)
from rlkit.envs.wrappers.base import Wrapper
from rlkit.envs.wrappers.observations import Flatten, FrameStack, FrameStackState, HideVelocity, PreviousActionReward
from rlkit.envs.wrappers.rewards import ClipReward, ScaleReward

__all__ = [
    "ActionRepeat",
    "ClipAction",
    "ClipReward",
    "Flatten",
    "FrameStack",
    "FrameStackState",
    "HideVelocity",
    "PreviousActionReward",
    "ScaleReward",
    "StickyAction",
    "StickyActionState",
    "TimeLimit",
    "TimeLimitState",
    "Wrapper",
]

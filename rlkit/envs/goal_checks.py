"""Comparison of a function of goals with real steps: hindsight learns from its rewards beside those of the steps."""

from collections.abc import Callable

import jax
import numpy as np

from rlkit.names import ACHIEVED_GOAL, DESIRED_GOAL, raised
from rlkit.types import ConfigError, PyTree

GoalRewards = Callable[[PyTree, PyTree], tuple[np.ndarray, np.ndarray]]
_TOLERANCE = 1e-5  # relative to the largest reward, for rounding errors
_REMEDY = "set goal_reward to a function of the two goals (--goal_reward module:function)"


def check_goal_rewards(
    name: str,
    rewards_of: GoalRewards,
    before: PyTree,
    after: PyTree,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
) -> None:
    """Check that the rewards of real steps are those that a function returns for the goals of these steps.

    Where the goal changes with a step, its reward may be of the old or of the new goal.

    Args:
      name: of the environment, for errors.
      rewards_of: (achieved, desired), leaves [..., *shape] -> rewards [...], ends [...], as of `compute_reward`.
      before, after: observations of each step, leaves [..., *shape] of NumPy; `after` is from before any reset.
      reward, terminated, truncated: [...], of the steps.

    Raises:
      ConfigError: a reward differs by more than the rounding of goals to float32 explains, or the function ends an
        episode that goes on.
    """
    achieved, found = after[ACHIEVED_GOAL], []
    for desired in (after[DESIRED_GOAL], before[DESIRED_GOAL]):
        computed, ends = (np.asarray(x) for x in rewards_of(achieved, desired))
        apart = jax.tree.map(_away, achieved, desired), jax.tree.map(_away, desired, achieved)
        rounding = np.abs(np.asarray(rewards_of(*apart)[0], np.float64) - computed)
        scale = max(float(np.max(np.abs(x), initial=0)) for x in (reward, computed))
        equal = np.abs(computed.astype(np.float64) - reward) <= _TOLERANCE * scale + 2 * rounding
        found.append((computed, ends, equal))
    (computed, ends, equal), (_, old_ends, old_equal) = found
    if len(wrong := np.argwhere(~(equal | old_equal))):
        at = tuple(wrong[0])
        raise ConfigError(
            f"env={name!r}: replay='hindsight' needs the rewards of other goals, and compute_reward returns "
            f"{computed[at]:.6g} for the goals of a step whose reward is {reward[at]:.6g}; leave out what changes "
            f"rewards or goals outside of compute_reward, or {_REMEDY}"
        )
    if (ends & old_ends & ~terminated & ~truncated).any():
        raise ConfigError(
            f"env={name!r}: replay='hindsight' needs the ends of other goals, and compute_terminated (in JAX "
            "compute_reward) returns true for the goals of a step whose terminated is false; leave out what changes "
            f"terminated, or {_REMEDY}"
        )


def failed(name: str, method: str, error: BaseException) -> ConfigError:
    """Return the error, of one line, for an exception that an environment's method raises."""
    return ConfigError(
        f"env={name!r}: replay='hindsight' calls {method} for other goals, with an empty info where it has one, and it "
        f"raised {raised(error)}; use the two goals alone, or {_REMEDY}"
    )


def _away(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Floats next to `x`, further from `y`; `x` itself where both are equal, or integers."""
    if x.dtype.kind != "f":
        return x
    with np.errstate(over="ignore"):
        return np.nextafter(x, 2 * x - y)

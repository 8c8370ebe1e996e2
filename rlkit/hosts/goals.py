"""Rewards of other goals than an environment's own, where it is outside of JAX."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.agents.common.off_policy import check_goals
from rlkit.envs.goal_checks import check_goal_rewards, failed
from rlkit.hosts.pool import Step
from rlkit.hosts.spaces import space
from rlkit.hosts.worker import contract
from rlkit.hosts.worker.recipe import Recipe, constructor
from rlkit.hosts.worker.wrappers import method
from rlkit.names import ACHIEVED_GOAL, DESIRED_GOAL
from rlkit.types import Array, ConfigError, PyTree

_GOALS = (ACHIEVED_GOAL, DESIRED_GOAL)


class HostGoals:
    """Rewards by `compute_reward` of an environment, and ends by `compute_terminated`, for goals of observations here.

    The interface is that of Gymnasium-Robotics: `compute_reward(achieved, desired, info)`, of the outermost wrapper
    that has one. The environment has been reset, the goals are in its own numbering and dtypes, and `info` is empty.
    `compute_reward` is called for a whole batch at once if it takes one, and else for each pair of goals.

    Args:
      env: the environment with its wrappers; it has a method `compute_reward`.
      name: of the environment, for errors.
      seed: of its reset.

    Raises:
      ConfigError: its observations have no goals, or the method raises an exception.
    """

    def __init__(self, env: Any, *, name: str, seed: int):
        self.env, self.name = env, name
        tree: Any = contract.describe(env.observation_space)
        check_goals(space(tree))
        self.trees = [tree[goal] for goal in _GOALS]
        self.methods = {x: method(env, x) for x in ("compute_reward", "compute_terminated")}
        env.reset(seed=seed)
        self.batched = self._takes_batches()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def __call__(self, achieved: PyTree, desired: PyTree) -> tuple[Array, Array]:
        """Return the reward [] and the end [] of one pair of goals, in a program of JAX."""
        shapes = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.bool_)
        return jax.pure_callback(self.rewards, shapes, achieved, desired, vmap_method="broadcast_all")

    def rewards(self, achieved: PyTree, desired: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Return rewards [...] and ends [...] of goals with leaves [..., *shape]."""
        leaf, first = contract.leaves(self.trees[0])[0], jax.tree.leaves(achieved)[0]
        lead = first.shape[: first.ndim - len(leaf.shape)]
        native = [_native(tree, x) for tree, x in zip(self.trees, (achieved, desired), strict=True)]
        pairs = list(zip(*(_rows(tree, x) for tree, x in zip(self.trees, native, strict=True)), strict=True))
        goals = [contract.build(tree, iter(x)) for tree, x in zip(self.trees, native, strict=True)]
        call = self._call
        rewards = call("compute_reward", *goals) if self.batched else [call("compute_reward", *x) for x in pairs]
        # Of one pair of goals in Gymnasium-Robotics.
        has_ends = self.methods["compute_terminated"] is not None
        ends = [has_ends and call("compute_terminated", *x) for x in pairs]
        return np.asarray(rewards, np.float32).reshape(lead), np.asarray(ends, bool).reshape(lead)

    def compare(self, before: PyTree, step: Step) -> None:
        """Raise ConfigError where the rewards of a pool's step are not those of its goals.

        Args:
          before: observations [N, ...] that were acted on.
          step: that followed.
        """
        after, before = (jax.tree.map(lambda x: x[step.real], obs) for obs in (step.next_obs, before))
        flags = (x[step.real] for x in (step.reward, step.terminated, step.truncated))
        check_goal_rewards(self.name, self.rewards, before, after, *flags)

    def _call(self, name: str, *goals: Any) -> Any:
        function = self.methods[name]
        assert function is not None
        try:
            return function(*goals, {})
        except Exception as error:  # whatever a function of the user's raises
            raise failed(self.name, name, error) from error

    def _takes_batches(self) -> bool:
        """True where the rewards of several pairs of goals at once are those of each pair alone."""
        spaces = [copy.deepcopy(self.env.observation_space[goal]) for goal in _GOALS]
        # Not as many as a goal has entries, for which the rewards of each entry would have the same shape.
        count = 1 + max((1, *(n for leaf in contract.leaves(self.trees[0]) for n in leaf.shape)))
        rows: list[list[Any]] = []
        for goals in spaces:
            goals.seed(0)
            rows.append([goals.sample() for _ in range(count)])
        alone = [np.asarray(self._call("compute_reward", *pair)) for pair in zip(*rows, strict=True)]
        if any(x.size != 1 or x.dtype.kind not in "fiub" for x in alone):
            got = f"{alone[0].dtype.name}{list(alone[0].shape)}"
            raise ConfigError(
                f"env={self.name!r}: compute_reward must return a number for one pair of goals, got {got}"
            )
        batches = [jax.tree.map(lambda *x: np.stack(x), *goals) for goals in rows]
        try:
            together = np.asarray(self.methods["compute_reward"](*batches, {}))  # type: ignore[misc]
            return together.shape == (count,) and np.allclose(together, np.reshape(alone, -1), rtol=1e-5)
        except Exception:  # whatever it raises for arrays of this shape
            return False


def make(recipe: Recipe, *, name: str, seed: int) -> HostGoals | None:
    """Make an environment for the rewards of goals; None where neither it nor a wrapper has `compute_reward`.

    Raises:
      ConfigError: as `HostGoals` does.
    """
    env = constructor(recipe)()
    try:
        found = None if method(env, "compute_reward") is None else HostGoals(env, name=name, seed=seed)
    except BaseException:
        env.close()
        raise
    if found is None:
        env.close()
    return found


def _native(tree: contract.SpaceTree, goals: PyTree) -> list[np.ndarray]:
    """The leaves of goals here, [..., *shape], as the environment has them, [B, *shape]."""
    pairs = zip(contract.leaves(tree), jax.tree.leaves(goals), strict=True)
    return [contract.to_native(leaf)(np.reshape(x, (-1, *leaf.shape))) for leaf, x in pairs]


def _rows(tree: contract.SpaceTree, leaves: list[np.ndarray]) -> list[Any]:
    """Single goals of the environment's space, from leaves [B, *shape]."""
    convert: list[Callable] = [(lambda x: x) if leaf.discrete else np.asarray for leaf in contract.leaves(tree)]
    rows = zip(*leaves, strict=True)
    return [contract.build(tree, iter([f(x) for f, x in zip(convert, row, strict=True)])) for row in rows]

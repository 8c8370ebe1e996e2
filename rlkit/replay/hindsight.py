"""Hindsight experience replay (Andrychowicz et al. 2017): what an episode reached becomes the goal of its steps."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlkit.ops._arrays import as_arrays, check_bools, check_key, check_shape
from rlkit.ops._integers import uniform_below
from rlkit.types import Array, ConfigError, Key, PyTree, Transition


def relabel(
    item: Transition,
    mask: Array,
    key: Key,
    *,
    goal_of: Callable[[PyTree], PyTree],
    with_goal: Callable[[PyTree, PyTree], PyTree],
    reward_fn: Callable[[PyTree, PyTree], tuple[Array, Array]],
    ratio: float = 0.8,
) -> Transition:
    """Return the steps of one slice, some with a goal that their episode reached later ("future", section 4.5).

    A step is relabelled with probability `ratio`, by the goal that its episode has reached after itself or a later step
    of the slice, each equally likely. Each step has a goal of its own, so that the result is L single transitions, not
    a window for n-step returns. The slice has to lie in one episode, as those of `replay.slices` do; with
    `strict=False` and a `slice_len` of the longest episode the first step of each has all of its future. For a batch of
    slices, use jax.vmap.

    Args:
      item: leaves [L, ...], in order of time.
      mask: [L] bool, True at the first, real steps.
      key: a key.
      goal_of: obs -> the goal that is reached in it; of one observation.
      with_goal: (obs, goal) -> the observation with another goal to reach; of one observation.
      reward_fn: (goal reached by the step, goal to reach) -> reward [] float, terminated [] bool.
      ratio: in [0, 1], share of the steps that are relabelled; 0.8 is the paper's k = 4.

    Returns:
      Transition, leaves [L, ...]. obs, next_obs, reward, terminated and truncated of relabelled steps are new; steps
      outside of the mask stay.

    Raises:
      ConfigError: `ratio` is out of range.
      ValueError: `key` is not a key, or `mask` is not [L] bool.
    """
    if not 0 <= ratio <= 1:
        raise ConfigError(f"ratio={ratio} must lie in [0, 1]; 0.8 is usual")
    check_key(key)
    check_bools(mask=mask)
    item, mask = as_arrays((item, mask))
    length = jnp.shape(item.reward)[0] if jnp.ndim(item.reward) == 1 else 0
    check_shape("mask", mask, (length,))
    choice_key, future_key = jax.random.split(key)
    row = jnp.arange(length, dtype=jnp.int32)
    count = jnp.sum(mask, dtype=jnp.int32)
    ahead = uniform_below(future_key, (length,), jnp.maximum(count - row, 1).astype(jnp.uint32)).astype(jnp.int32)
    relabelled = jax.random.bernoulli(choice_key, ratio, (length,)) & mask

    reached = jax.vmap(goal_of)(item.next_obs)
    goal = jax.tree.map(lambda x: x[jnp.where(mask, row + ahead, row)], reached)
    reward, terminated = jax.vmap(reward_fn)(reached, goal)
    new = item._replace(
        obs=jax.vmap(with_goal)(item.obs, goal),
        next_obs=jax.vmap(with_goal)(item.next_obs, goal),
        reward=reward.astype(item.reward.dtype),
        terminated=terminated,
        truncated=(item.truncated | item.terminated) & ~terminated,  # the episode ended there, whatever the goal
    )
    return jax.tree.map(lambda x, y: jnp.where(relabelled.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, item)

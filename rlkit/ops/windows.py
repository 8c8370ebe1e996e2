"""Returns of windows of consecutive steps, as replay buffers draw them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from rlkit.ops._arrays import as_floats, check_bools, check_shapes, pick, scalars
from rlkit.types import Array


class WindowReturn(NamedTuple):
    """Parts of the n-step return of windows, all [...]."""

    reward: Array  # [...] float, the discounted sum of the rewards of the real steps
    discount: Array  # [...] float, factor of the value of the last real step's next_obs: γ^k, 0 at a terminal state
    last: Array  # [...] int32, index of the last real step in the window


def n_step_window(reward: ArrayLike, terminated: ArrayLike, mask: ArrayLike, *, gamma: ArrayLike) -> WindowReturn:
    """N-step return of windows, Σ_{i<k} γ^i r_i + γ^k V(o_k), without its last term (Sutton and Barto, eq. 7.1).

    k is the number of real steps. In a window that ends early, with its episode or with the newest row, it is less than
    L, and the bootstrap is discounted by γ^k.

    Args:
      reward: [..., L] float, in order of time.
      terminated: [..., L] bool; that of the last real step counts.
      mask: [..., L] bool, True at the first k steps of a window; the steps after them are not read.
      gamma: scalar in [0, 1], discount per step.

    Returns:
      WindowReturn, leaves [...]. A window without a real step has reward 0 and discount 1.

    Raises:
      ValueError: a shape differs from that of `reward`, a flag is not bool, or gamma is not a scalar.
    """
    check_shapes(reward=reward, terminated=terminated, mask=mask)
    check_bools(terminated=terminated, mask=mask)
    (reward,) = as_floats(reward)
    (gamma,) = scalars(reward, gamma=gamma)
    mask = jnp.asarray(mask)
    count = jnp.sum(mask, axis=-1, dtype=jnp.int32)
    last = jnp.maximum(count - 1, 0)
    weights = (gamma ** jnp.arange(reward.shape[-1], dtype=reward.dtype)).reshape((1,) * (reward.ndim - 1) + (-1,))
    ended = pick(jnp.asarray(terminated), last) & (count > 0)
    return WindowReturn(
        reward=jnp.sum(jnp.where(mask, weights * reward, 0.0), axis=-1),
        discount=jnp.where(ended, 0.0, gamma ** count.astype(reward.dtype)),
        last=last,
    )

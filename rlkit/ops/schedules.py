"""Schedules as functions of progress and not of a step number, so that a schedule's length may be traced."""

from typing import Literal

import jax.numpy as jnp

from rlkit.types import Array

Schedule = Literal["constant", "linear", "cosine"]


def schedule(kind: Schedule, progress: Array | float) -> Array:
    """Factor of a coefficient at `progress`, from 1 at the start to 0 at the end ("constant": 1 throughout).

    Args:
      kind: "constant" is 1 throughout, "linear" is 1 - progress, "cosine" is (1 + cos(pi progress)) / 2
        (Loshchilov and Hutter 2017, eq. 5).
      progress: [...] float, the completed fraction of the schedule; clipped to [0, 1].

    Returns:
      [...] float32.

    Raises:
      ValueError: kind is not a schedule.
    """
    progress = jnp.clip(jnp.asarray(progress, jnp.float32), 0.0, 1.0)
    if kind == "constant":
        return jnp.ones_like(progress)
    if kind == "linear":
        return 1.0 - progress
    if kind == "cosine":
        return (1.0 + jnp.cos(jnp.pi * progress)) / 2
    raise ValueError(f"kind={kind!r} must be 'constant', 'linear' or 'cosine'")

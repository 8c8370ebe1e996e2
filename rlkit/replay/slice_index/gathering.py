"""Rows of slices, taken from arrays of the same ring."""

import jax
import jax.numpy as jnp

from rlkit.replay import storage
from rlkit.replay.slice_index.state import Slices
from rlkit.types import PyTree


def gather(data: PyTree, slices: Slices) -> PyTree:
    """Take the rows of slices from data that is stored as the indexed ring is: row by slot.

    Args:
      data: leaves [R, N, ...]; flat ones, [R * N, ...], as `x.reshape(R, N, ...)`, which copies nothing.
      slices: B slices of L steps of an index [R, N].

    Returns:
      Leaves [B, L, ...]; rows where the mask is False are of other episodes, or not yet stored.

    Raises:
      ValueError: a leaf has fewer than two axes, or the leaves differ in those two.
    """
    leading = {jnp.shape(leaf)[:2] for leaf in jax.tree.leaves(data)}
    if len(leading) != 1 or len(next(iter(leading))) != 2:
        raise ValueError(f"data has leaves with leading axes {sorted(leading)}; give all of them the ring's, [R, N]")
    ((num_rows, _),) = leading
    slots, envs = storage.window_at(slices.slot, slices.env, slices.mask.shape[-1], num_rows)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[slots, envs], data)

"""Walking over spaces and observations of any structure."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import Array, PyTree

MASK = "action_mask"  # the observation leaf that marks legal actions; no wrapper changes it


def map_obs(fn: Callable, obs: PyTree, *rest: PyTree) -> PyTree:
    """`fn` on every leaf but the mask, which stays what it is in `obs`."""

    def leaf(path: Any, x: Array, *others: Array) -> Array:
        return x if path and getattr(path[-1], "key", None) == MASK else fn(x, *others)

    return jax.tree_util.tree_map_with_path(leaf, obs, *rest)


def map_space(fn: Callable[[Space], Space], space: Space) -> Space:
    """`fn` on every leaf space but the mask's."""
    match space:
        case Dict():
            return Dict({name: s if name == MASK else map_space(fn, s) for name, s in space.spaces.items()})
        case Tuple():
            return Tuple(tuple(map_space(fn, s) for s in space.spaces))
    return fn(space)


def without_mask(space: Space) -> tuple[Space, Space | None]:
    """The space without its action mask, and the mask's space where there is one."""
    if isinstance(space, Dict) and MASK in space.spaces:
        return Dict({name: s for name, s in space.spaces.items() if name != MASK}), space.spaces[MASK]
    return space, None


def flatten(space: Space, obs: PyTree) -> Array:
    """A value of the space as one vector [D] float32, discrete parts one-hot."""
    match space:
        case Dict():
            return jnp.concatenate([flatten(child, obs[name]) for name, child in space.spaces.items()])
        case Tuple():
            return jnp.concatenate([flatten(child, x) for child, x in zip(space.spaces, obs, strict=True)])
        case Discrete():
            return jax.nn.one_hot(obs, space.n, dtype=jnp.float32)
        case MultiDiscrete():
            return jnp.concatenate([jax.nn.one_hot(obs[i], n, dtype=jnp.float32) for i, n in enumerate(space.nvec)])
    return jnp.ravel(obs).astype(jnp.float32)


def flat_bounds(space: Space) -> list[tuple[np.ndarray, np.ndarray]]:
    """(low, high) of each part, [D_i] float32, in the order of `flatten`."""
    match space:
        case Dict():
            return [bounds for child in space.spaces.values() for bounds in flat_bounds(child)]
        case Tuple():
            return [bounds for child in space.spaces for bounds in flat_bounds(child)]
        case Discrete():
            return [(np.zeros(space.n, np.float32), np.ones(space.n, np.float32))]
        case MultiDiscrete():
            return [(np.zeros(sum(space.nvec), np.float32), np.ones(sum(space.nvec), np.float32))]
    return [(space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32))]

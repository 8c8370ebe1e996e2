"""Functions on spaces and observations of any structure; action masks and states of games are left unchanged."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import ACTION_MASK, GAME_STATE, PRIVILEGED
from rlkit.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import Array, PyTree

UNCHANGED = (ACTION_MASK, GAME_STATE)  # parts of an observation


def map_obs(fn: Callable, obs: PyTree, *rest: PyTree) -> PyTree:
    """Apply `fn` to every leaf except those in `UNCHANGED`, which are taken from `obs`."""

    def leaf(path: Any, x: Array, *others: Array) -> Array:
        return x if any(getattr(entry, "key", None) in UNCHANGED for entry in path) else fn(x, *others)

    return jax.tree_util.tree_map_with_path(leaf, obs, *rest)


def map_space(fn: Callable[[Space], Space], space: Space) -> Space:
    """Apply `fn` to every leaf space except those in `UNCHANGED`."""
    match space:
        case Dict():
            return Dict({name: s if name in UNCHANGED else map_space(fn, s) for name, s in space.spaces.items()})
        case Tuple():
            return Tuple(tuple(map_space(fn, s) for s in space.spaces))
    return fn(space)


def split_special(space: Space) -> tuple[Space, dict[str, Space]]:
    """Return the space without what is in `UNCHANGED` and `privileged`, and the spaces of those that it has."""
    if not isinstance(space, Dict):
        return space, {}
    names = [name for name in (*UNCHANGED, PRIVILEGED) if name in space.spaces]
    others = {name: child for name, child in space.spaces.items() if name not in names}
    return Dict(others), {name: space.spaces[name] for name in names}


def flatten(space: Space, obs: PyTree) -> Array:
    """Flatten a value of the space to one vector [D] float32, with discrete parts one-hot."""
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
    """Return the bounds (low, high) of each part, [D_i] float32 each, in the order of `flatten`."""
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

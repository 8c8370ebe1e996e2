"""Observations of any space as one floating-point array, the input of a torso."""

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import ACTION_MASK
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import Array, PyTree


def action_mask(obs: PyTree) -> Array | None:
    """Return the legal actions [..., A] bool of an observation, or None if it has no mask."""
    return obs[ACTION_MASK].astype(bool) if isinstance(obs, dict) and ACTION_MASK in obs else None


def image_shape(space: Space) -> tuple[int, ...] | None:
    """Return (H, W, C) if the observation, apart from an action mask, is one image, else None."""
    spaces = [s for name, s in space.spaces.items() if name != ACTION_MASK] if isinstance(space, Dict) else [space]
    (first, *others) = spaces or [space]
    return first.shape if not others and isinstance(first, Box) and len(first.shape) == 3 else None


def features(space: Space, obs: PyTree, *, image: bool = False) -> Array:
    """Return the observation as one float array, without its action mask.

    Discrete and MultiDiscrete parts become one-hot, bytes are divided by 255, everything is flattened and joined.

    Args:
      space: the observation's space.
      obs: a pytree of that space, with any leading axes [...].
      image: True keeps the shape [H, W, C] of an observation that is one image.

    Returns:
      [..., D] float32, or [..., H, W, C].
    """
    parts = _parts(space, obs)
    if image:
        return parts[0][0]
    flat = [x.reshape(*x.shape[: x.ndim - event], -1) for x, event in parts]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=-1)


def _parts(space: Space, obs: PyTree) -> list[tuple[Array, int]]:
    """The leaves as float arrays, each with its number of event axes."""
    if isinstance(space, Dict):
        return [p for name, s in space.spaces.items() if name != ACTION_MASK for p in _parts(s, obs[name])]
    if isinstance(space, Tuple):
        return [p for s, x in zip(space.spaces, obs, strict=True) for p in _parts(s, x)]
    if isinstance(space, Discrete):
        return [(jax.nn.one_hot(obs, space.n, dtype=jnp.float32), 1)]
    if isinstance(space, MultiDiscrete):
        hot = [jax.nn.one_hot(obs[..., i], n, dtype=jnp.float32) for i, n in enumerate(space.nvec)]
        return [(jnp.concatenate(hot, axis=-1), 1)]
    x = jnp.asarray(obs)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32)
    return [(x / 255 if space.dtype == np.uint8 else x, len(space.shape))]


def real_valued(space: Space, obs: PyTree) -> list[Array]:
    """Return the leaves of `obs` to normalize: those of float boxes, never the action mask."""
    leaves = jax.tree.leaves(obs)
    return [x for x, real in zip(leaves, _real_flags(space), strict=True) if real]


def replace_real_valued(space: Space, obs: PyTree, values: list[Array]) -> PyTree:
    """Return `obs` with the leaves of `real_valued` replaced by `values`."""
    leaves, treedef = jax.tree.flatten(obs)
    new = iter(values)
    return treedef.unflatten([next(new) if real else x for x, real in zip(leaves, _real_flags(space), strict=True)])


def _real_flags(space: Space) -> list[bool]:
    if isinstance(space, Dict):
        return [f and name != ACTION_MASK for name, s in space.spaces.items() for f in _real_flags(s)]
    if isinstance(space, Tuple):
        return [f for s in space.spaces for f in _real_flags(s)]
    return [isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)]

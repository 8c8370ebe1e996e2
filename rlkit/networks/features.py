"""Observations of any space as floating-point arrays, the inputs of encoders."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import ACTION_MASK, PRIVILEGED
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import Array, PyTree

_MOST_CHANNELS = 16  # of a leading axis that is taken for the channels of an image


def action_mask(obs: PyTree) -> Array | None:
    """Return the legal actions [..., A] bool of an observation, or None if it has no mask."""
    return obs[ACTION_MASK].astype(bool) if isinstance(obs, dict) and ACTION_MASK in obs else None


class Leaf(NamedTuple):
    """A leaf of an observation."""

    name: str  # its keys and indices, joined by "/"; empty where the observation is one array
    space: Any  # Box, Discrete or MultiDiscrete
    value: Any  # [..., *space.shape] with any leading axes; None without an observation


def leaves(space: Space, obs: PyTree = None) -> list[Leaf]:
    """Return the leaves of an observation of this space, without the action mask."""
    return list(_leaves(space, obs, ""))


def _leaves(space: Space, obs: PyTree, name: str) -> Iterator[Leaf]:
    if isinstance(space, Dict):
        for key, child in space.spaces.items():
            if key != ACTION_MASK:
                yield from _leaves(child, None if obs is None else obs[key], f"{name}/{key}".lstrip("/"))
    elif isinstance(space, Tuple):
        for i, child in enumerate(space.spaces):
            yield from _leaves(child, None if obs is None else obs[i], f"{name}/{i}".lstrip("/"))
    else:
        yield Leaf(name, space, obs)


def vector(leaf: Leaf) -> Array:
    """Return a leaf as [..., D] float32: one-hot if it is Discrete or MultiDiscrete, bytes divided by 255."""
    x, event = _float(leaf)
    return x.reshape(*x.shape[: x.ndim - event], -1)


def image(leaf: Leaf, image_axes: str = "auto") -> Array:
    """Return a leaf of three axes as [..., H, W, C] float32, bytes divided by 255; see `image_shape`."""
    x, _ = _float(leaf)
    return jnp.moveaxis(x, -3, -1) if _channels_first(leaf.space.shape, image_axes) else x


def _float(leaf: Leaf) -> tuple[Array, int]:
    """A leaf as a float array, and its number of event axes."""
    space, x = leaf.space, leaf.value
    if isinstance(space, Discrete):
        return jax.nn.one_hot(x, space.n, dtype=jnp.float32), 1
    if isinstance(space, MultiDiscrete):
        hot = [jax.nn.one_hot(x[..., i], n, dtype=jnp.float32) for i, n in enumerate(space.nvec)]
        return jnp.concatenate(hot, axis=-1), 1
    x = jnp.asarray(x)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32)
    return x / 255 if space.dtype == np.uint8 else x, len(space.shape)


def image_shape(space: Space, image_axes: str = "auto") -> tuple[int, ...] | None:
    """Return (H, W, C) of a Box of three axes, None for any other space.

    Args:
      space: of a leaf.
      image_axes: "last" or "first", the place of the channels; "auto": first where the leading axis has at most 16
        entries and fewer than both others.
    """
    if not isinstance(space, Box) or len(space.shape) != 3:
        return None
    return (*space.shape[1:], space.shape[0]) if _channels_first(space.shape, image_axes) else space.shape


def is_image(space: Space, image_axes: str = "auto") -> bool:
    """True for a Box of three axes that holds bytes, or whose height and width are at least 8."""
    shape = image_shape(space, image_axes)
    return isinstance(space, Box) and shape is not None and (space.dtype == np.uint8 or min(shape[:2]) >= 8)


def is_ambiguous(shape: tuple[int, ...]) -> bool:
    """True for three axes of which the first and the last may be the channels, such as (3, 64, 3)."""
    return shape[0] == shape[2] <= _MOST_CHANNELS and shape[0] < shape[1]


def _channels_first(shape: tuple[int, ...], image_axes: str) -> bool:
    first = shape[0] <= _MOST_CHANNELS and shape[0] < min(shape[1:])
    return first if image_axes == "auto" else image_axes == "first"


def real_valued(space: Space, obs: PyTree) -> list[Array]:
    """Return the leaves of `obs` to normalize: those of float boxes, never the action mask or an image."""
    return [x for x, real in zip(jax.tree.leaves(obs), _real_flags(space), strict=True) if real]


def replace_real_valued(space: Space, obs: PyTree, values: list[Array]) -> PyTree:
    """Return `obs` with the leaves of `real_valued` replaced by `values`."""
    old, treedef = jax.tree.flatten(obs)
    new = iter(values)
    return treedef.unflatten([next(new) if real else x for x, real in zip(old, _real_flags(space), strict=True)])


def privileged_flags(space: Space) -> list[bool]:
    """Return for each leaf of `real_valued` whether it belongs to the part named `privileged`."""
    if not isinstance(space, Dict):
        return [False] * sum(_real_flags(space))
    counts = {name: sum(_real_flags(child)) for name, child in space.spaces.items() if name != ACTION_MASK}
    return [name == PRIVILEGED for name, count in counts.items() for _ in range(count)]


def _real_flags(space: Space) -> list[bool]:
    if isinstance(space, Dict):
        return [f and name != ACTION_MASK for name, s in space.spaces.items() for f in _real_flags(s)]
    if isinstance(space, Tuple):
        return [f for s in space.spaces for f in _real_flags(s)]
    return [isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and not is_image(space)]

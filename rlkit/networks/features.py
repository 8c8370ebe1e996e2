"""Observations of any space as floating-point arrays, the inputs of encoders."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import ACTION_MASK, PRIVILEGED
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from rlkit.types import Array, PyTree


def action_mask(obs: PyTree) -> Array | None:
    """Return the legal actions [..., A] bool of an observation, or None if it has no mask."""
    return obs[ACTION_MASK].astype(bool) if isinstance(obs, dict) and ACTION_MASK in obs else None


def image_shape(space: Space, image_axes: str = "auto") -> tuple[int, ...] | None:
    """Return (H, W, C) if the observation, apart from an action mask, is one array of three axes, else None.

    Args:
      space: the observation's space.
      image_axes: "last" or "first", the place of the channels; "auto": first where the leading axis has at most 16
        entries and fewer than both others.
    """
    spaces = [s for name, s in space.spaces.items() if name != ACTION_MASK] if isinstance(space, Dict) else [space]
    (first, *others) = spaces or [space]
    if others or not isinstance(first, Box) or len(first.shape) != 3:
        return None
    return _channels_last(first.shape, image_axes)


def image_shapes(space: Space, image_axes: str = "auto") -> list[tuple[int, ...]]:
    """Return (H, W, C) of the images in the observation: the only leaf if it has three axes, else `is_image` leaves."""
    one = image_shape(space, image_axes)
    shapes = [_channels_last(leaf.shape, image_axes) for leaf, _ in _leaves(space, None) if is_image(leaf, image_axes)]
    return [one] if one is not None else shapes


def is_image(space: Space, image_axes: str = "auto") -> bool:
    """True for a Box of three axes that holds bytes, or whose height and width are at least 8."""
    if not isinstance(space, Box) or len(space.shape) != 3:
        return False
    return space.dtype == np.uint8 or min(_channels_last(space.shape, image_axes)[:2]) >= 8


def _channels_first(shape: tuple[int, ...], image_axes: str) -> bool:
    first = shape[0] <= 16 and shape[0] < min(shape[1:])
    return first if image_axes == "auto" else image_axes == "first"


def _channels_last(shape: tuple[int, ...], image_axes: str) -> tuple[int, ...]:
    return (*shape[1:], shape[0]) if _channels_first(shape, image_axes) else shape


def features(
    space: Space, obs: PyTree, *, images: bool = False, image_axes: str = "auto"
) -> tuple[list[Array], Array | None]:
    """Return the observation as float arrays, without its action mask.

    Discrete and MultiDiscrete parts become one-hot, bytes are divided by 255.

    Args:
      space: the observation's space.
      obs: a pytree of that space, with any leading axes [...].
      images: True keeps the images, as `image_shapes` names them; False flattens them like everything else.
      image_axes: as for `image_shape`.

    Returns:
      The images, each [..., H, W, C] float32, and all other numbers joined, [..., D] float32, or None without any.
    """
    leaves = list(_leaves(space, obs))
    one = images and image_shape(space, image_axes) is not None
    kept, flat = [], []
    for leaf, x in leaves:
        x, event = _float(leaf, x)
        if images and (one or is_image(leaf, image_axes)):
            kept.append(jnp.moveaxis(x, -3, -1) if _channels_first(leaf.shape, image_axes) else x)
        else:
            flat.append(x.reshape(*x.shape[: x.ndim - event], -1))
    if not flat:
        return kept, None
    return kept, flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=-1)


def _leaves(space: Space, obs: PyTree) -> Iterator[tuple[Any, Any]]:
    """The spaces and values of the leaves, without the action mask; without an observation, the values are None."""
    if isinstance(space, Dict):
        for name, child in space.spaces.items():
            if name != ACTION_MASK:
                yield from _leaves(child, None if obs is None else obs[name])
    elif isinstance(space, Tuple):
        for child, x in zip(space.spaces, [None] * len(space.spaces) if obs is None else obs, strict=True):
            yield from _leaves(child, x)
    else:
        yield space, obs


def _float(space: Any, x: Any) -> tuple[Array, int]:
    """A leaf as a float array, and its number of event axes."""
    if isinstance(space, Discrete):
        return jax.nn.one_hot(x, space.n, dtype=jnp.float32), 1
    if isinstance(space, MultiDiscrete):
        hot = [jax.nn.one_hot(x[..., i], n, dtype=jnp.float32) for i, n in enumerate(space.nvec)]
        return jnp.concatenate(hot, axis=-1), 1
    x = jnp.asarray(x)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.float32)
    return x / 255 if space.dtype == np.uint8 else x, len(space.shape)


def real_valued(space: Space, obs: PyTree) -> list[Array]:
    """Return the leaves of `obs` to normalize: those of float boxes, never the action mask or an image."""
    leaves = jax.tree.leaves(obs)
    return [x for x, real in zip(leaves, _real_flags(space), strict=True) if real]


def replace_real_valued(space: Space, obs: PyTree, values: list[Array]) -> PyTree:
    """Return `obs` with the leaves of `real_valued` replaced by `values`."""
    leaves, treedef = jax.tree.flatten(obs)
    new = iter(values)
    return treedef.unflatten([next(new) if real else x for x, real in zip(leaves, _real_flags(space), strict=True)])


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

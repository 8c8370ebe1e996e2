"""Observations of any space as floating-point arrays, the inputs of encoders."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.names import ACTION_MASK, GAME_STATE, channels_first
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, shape_of
from rlkit.types import Array, ConfigError, PyTree

_MOST_CLASSES = 2**16  # of a one-hot vector
_NO_FEATURES = (ACTION_MASK, GAME_STATE)  # leaves


def action_mask(obs: PyTree) -> Array | None:
    """Return the legal actions [..., A] bool of an observation, or None if it has no mask."""
    return obs[ACTION_MASK].astype(bool) if isinstance(obs, dict) and ACTION_MASK in obs else None


class Leaf(NamedTuple):
    """A leaf of an observation."""

    name: str  # its keys and indices, joined by "/"; empty where the observation is one array
    space: Any  # Box, Discrete or MultiDiscrete
    value: Any  # [..., *space.shape] with any leading axes; None without an observation


def leaves(space: Space, obs: PyTree = None) -> list[Leaf]:
    """Return the leaves of an observation of this space, without the action mask and the state of a game.

    Raises:
      ConfigError: a leaf has not the shape of its space after any leading axes.
    """
    return list(_leaves(space, obs, ""))


def _leaves(space: Space, obs: PyTree, name: str) -> Iterator[Leaf]:
    if isinstance(space, Dict):
        for key, child in space.spaces.items():
            if key != ACTION_MASK and (key != GAME_STATE or name):  # the latter is one at the top level alone
                yield from _leaves(child, None if obs is None else obs[key], f"{name}/{key}".lstrip("/"))
    elif isinstance(space, Tuple):
        for i, child in enumerate(space.spaces):
            yield from _leaves(child, None if obs is None else obs[i], f"{name}/{i}".lstrip("/"))
    else:
        shape = () if obs is None else np.shape(obs)
        if obs is not None and shape[len(shape) - len(space.shape) :] != space.shape:
            raise ConfigError(
                f"{name or 'the observation'} has the shape {list(shape)}, and must end in that of its space, "
                f"{list(space.shape)}"
            )
        yield Leaf(name, space, obs)


def vector(leaf: Leaf) -> Array:
    """Return a leaf as [..., D] float32: one-hot if it is Discrete or MultiDiscrete, bytes as `byte_range` has them.

    Other integers, booleans and floats keep their values. A vector of a space of bytes may be float: it is normalized
    already, and keeps its values as well.

    Raises:
      ConfigError: the one-hot vector would have more than 2^16 entries, which costs as much as a large image.
    """
    x, event = _float(leaf)
    return x.reshape(*x.shape[: x.ndim - event], -1)


def image(leaf: Leaf, image_axes: str = "auto") -> Array:
    """Return a leaf of three axes as [..., H, W, C] float32, scaled like a `vector`; see `image_shape`."""
    x, _ = _float(leaf)
    return jnp.moveaxis(x, -3, -1) if channels_first(leaf.space.shape, image_axes) else x


def _float(leaf: Leaf) -> tuple[Array, int]:
    """A leaf as a float array, and its number of event axes."""
    space, x = leaf.space, leaf.value
    if isinstance(space, Discrete | MultiDiscrete):
        count = space.n if isinstance(space, Discrete) else sum(space.nvec)
        if count > _MOST_CLASSES:
            raise ConfigError(
                f"{leaf.name or 'the observation'} is one-hot and must have at most {_MOST_CLASSES} classes, and it "
                f"has {count}; give the integer as a float Box or as digits (MultiDiscrete), or use a network of "
                "your own with an embedding"
            )
    if isinstance(space, Discrete):
        return jax.nn.one_hot(x, space.n, dtype=jnp.float32), 1
    if isinstance(space, MultiDiscrete):
        hot = [jax.nn.one_hot(x[..., i], n, dtype=jnp.float32) for i, n in enumerate(space.nvec)]
        return jnp.concatenate(hot, axis=-1), 1
    x = jnp.asarray(x)
    floating = jnp.issubdtype(x.dtype, jnp.floating)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32) if floating else jnp.float32)
    if space.dtype == np.uint8 and (is_image(space) or not floating):
        low, width = (jnp.broadcast_to(part.astype(x.dtype), x.shape) for part in byte_range(space))
        x = (x - low) / width
    return x, len(space.shape)


def byte_range(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the least value and the width, by which bytes x become (x - low) / width: [] float32, or [*shape].

    They are those of the space's bounds, so that bytes become 0 to 1: x / 255 in a Box(0, 255), x in a Box(0, 1). The
    width of an entry that is constant is 1.
    """
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    width = np.where(high > low, high - low, np.float32(1))
    low, width = (x.min() if x.size and x.min() == x.max() else x for x in (low, width))
    return np.asarray(low), np.asarray(width)


def image_shape(space: Space, image_axes: str = "auto") -> tuple[int, ...] | None:
    """Return (H, W, C) of a Box of three axes, None for any other space.

    Args:
      space: of a leaf.
      image_axes: "last" or "first", the place of the channels, or "auto"; see `names.channels_first`.
    """
    if not isinstance(space, Box) or len(space.shape) != 3:
        return None
    return (*space.shape[1:], space.shape[0]) if channels_first(space.shape, image_axes) else space.shape


def is_image(space: Space, image_axes: str = "auto") -> bool:
    """True for a Box of three axes that holds bytes, or whose height and width are at least 8."""
    shape = image_shape(space, image_axes)
    return isinstance(space, Box) and shape is not None and (space.dtype == np.uint8 or min(shape[:2]) >= 8)


def by_path(obs: PyTree) -> dict[str, Any]:
    """Return the leaves of `obs` by their paths, as in "['joints']"; that of an array alone is empty."""
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(obs)}


def replace(obs: PyTree, values: dict[str, Any]) -> PyTree:
    """Return `obs` with the leaves of `by_path` that `values` has replaced by those."""
    return jax.tree_util.tree_map_with_path(lambda path, x: values.get(jax.tree_util.keystr(path), x), obs)


def map_images(
    function: Callable[[Array, tuple[int, int]], Array], space: Space, obs: PyTree, image_axes: str = "auto"
) -> PyTree:
    """Return an observation with `function` of each leaf that `is_image` and of its axes of height and width."""
    if isinstance(space, Dict):
        return {
            name: obs[name] if name in _NO_FEATURES else map_images(function, part, obs[name], image_axes)
            for name, part in space.spaces.items()
        }
    if isinstance(space, Tuple):
        parts = zip(space.spaces, obs, strict=True)
        return tuple(map_images(function, part, x, image_axes) for part, x in parts)
    if not is_image(space, image_axes):
        return obs
    return function(obs, (-2, -1) if channels_first(space.shape, image_axes) else (-3, -2))


def to_normalize(space: Space, image_axes: str = "auto") -> list[str]:
    """Return the paths of the leaves to normalize: those of a Box of any dtype that is a feature and no image."""
    paths = by_path(shape_of(space))
    return [path for path, real in zip(paths, _box_flags(space, image_axes), strict=True) if real]


def _box_flags(space: Space, image_axes: str) -> list[bool]:
    if isinstance(space, Dict):
        return [f and name not in _NO_FEATURES for name, s in space.spaces.items() for f in _box_flags(s, image_axes)]
    if isinstance(space, Tuple):
        return [f for s in space.spaces for f in _box_flags(s, image_axes)]
    return [isinstance(space, Box) and not is_image(space, image_axes)]

"""Spaces: the shapes, dtypes and bounds of observations and actions.

`shape_of` gives the structure, shapes and dtypes of a space's values, `leaf_spaces` the space of each leaf in that
structure, `zeros` a value that is all zero.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Key = Array  # a typed key of shape [], as made by jax.random.key
PyTree = Any


@dataclass(frozen=True)
class Discrete:
    """The integers 0 ... n - 1."""

    n: int
    dtype: np.dtype = field(default=np.dtype(np.int32))

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, (), 0, self.n, shape_of(self).dtype)

    def contains(self, x: Any) -> Array:
        return (jnp.asarray(x) >= 0) & (jnp.asarray(x) < self.n)


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers, entry i in 0 ... nvec[i] - 1."""

    nvec: tuple[int, ...]
    dtype: np.dtype = field(default=np.dtype(np.int32))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.nvec),)

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, self.shape, 0, np.asarray(self.nvec), shape_of(self).dtype)

    def contains(self, x: Any) -> Array:
        return jnp.all((jnp.asarray(x) >= 0) & (jnp.asarray(x) < np.asarray(self.nvec)))


class Box:
    """Arrays between two bounds, which may be infinite."""

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...] | None = None, dtype: Any = np.float32):
        self.dtype = np.dtype(dtype)
        low, high = np.asarray(low), np.asarray(high)
        self.shape = tuple(shape) if shape is not None else np.broadcast_shapes(low.shape, high.shape)
        self.low = np.broadcast_to(low, self.shape).astype(self.dtype)  # [*shape]
        self.high = np.broadcast_to(high, self.shape).astype(self.dtype)  # [*shape]

    @property
    def bounded(self) -> bool:
        """True where every bound is finite; float32's largest number counts as infinite, as gymnax uses it."""
        return bool(self.bounded_below.all() and self.bounded_above.all())

    @property
    def bounded_below(self) -> np.ndarray:
        """[*shape] bool, true where the lower bound is finite."""
        return np.abs(self.low) < np.finfo(np.float32).max

    @property
    def bounded_above(self) -> np.ndarray:
        """[*shape] bool, true where the upper bound is finite."""
        return np.abs(self.high) < np.finfo(np.float32).max

    def sample(self, key: Key) -> Array:
        """A value [*shape]: uniform between two bounds, exponential from one bound, and normal where there is none.

        The exponential distribution has the mean 1, the normal distribution the mean 0 and the variance 1.
        """
        dtype, below, above = shape_of(self).dtype, self.bounded_below, self.bounded_above
        if not (below.any() or above.any()):
            return jax.random.normal(key, self.shape).clip(self.low, self.high).astype(dtype)
        if not self.bounded:
            return self._sample_partly_bounded(key, below, above).astype(dtype)
        if not np.issubdtype(self.dtype, np.floating):
            # Unsigned, as the width of a range may overflow int32. The highest number of the widest range is not drawn.
            unsigned = np.dtype(np.uint64 if dtype.itemsize == 8 else np.uint32)
            low, high = self.low.astype(unsigned), self.high.astype(unsigned)
            count = np.minimum(high - low, np.iinfo(unsigned).max - 1) + unsigned.type(1)
            return (jax.random.randint(key, self.shape, 0, count, unsigned) + low).astype(dtype)
        with np.errstate(over="ignore"):
            if np.isfinite(self.high - self.low).all():
                return jax.random.uniform(key, self.shape, dtype, self.low, self.high)
        share = jax.random.uniform(key, self.shape, dtype)  # between the bounds, as their difference overflows
        return (1 - share) * self.low.astype(dtype) + share * self.high.astype(dtype)

    def _sample_partly_bounded(self, key: Key, below: np.ndarray, above: np.ndarray) -> Array:
        """A value [*shape] float32 of a box that lacks some bounds and not all."""
        uniform_key, distance_key, normal_key = jax.random.split(key, 3)
        low, high = (np.where(has, x, 0).astype(np.float32) for has, x in ((below, self.low), (above, self.high)))
        share = jax.random.uniform(uniform_key, self.shape)
        distance = jax.random.exponential(distance_key, self.shape)
        normal = jax.random.normal(normal_key, self.shape)
        open_ended = jnp.where(below, low + distance, jnp.where(above, high - distance, normal))
        return jnp.where(below & above, (1 - share) * low + share * high, open_ended).clip(self.low, self.high)

    def contains(self, x: Any) -> Array:
        return jnp.all((jnp.asarray(x) >= self.low) & (jnp.asarray(x) <= self.high))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and self.dtype == other.dtype
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.low.tobytes(), self.high.tobytes()))

    def __repr__(self) -> str:
        low, high = (np.unique(bound) for bound in (self.low, self.high))
        text = ", ".join(str(b[0]) if b.size == 1 else f"[{b[0]} ... {b[-1]}]" for b in (low, high) if b.size)
        return f"Box({text}, shape={self.shape}, dtype={self.dtype.name})"


class Dict:
    """A dictionary of spaces. The leaf called `action_mask`, where there is one, marks the legal actions."""

    def __init__(self, spaces: dict[str, "Space"]):
        self.spaces = dict(sorted(spaces.items()))  # JAX sorts dictionary keys, so the order of the leaves agrees

    def sample(self, key: Key) -> dict[str, PyTree]:
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(k) for k, (name, space) in zip(keys, self.spaces.items(), strict=True)}

    def contains(self, x: Any) -> Array:
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dict) and self.spaces == other.spaces

    def __hash__(self) -> int:
        return hash(tuple(self.spaces.items()))

    def __repr__(self) -> str:
        return f"Dict({self.spaces})"


@dataclass(frozen=True)
class Tuple:
    """A tuple of spaces."""

    spaces: tuple["Space", ...]

    def sample(self, key: Key) -> tuple[PyTree, ...]:
        keys = jax.random.split(key, len(self.spaces))
        return tuple(space.sample(k) for k, space in zip(keys, self.spaces, strict=True))

    def contains(self, x: Any) -> Array:
        return jnp.all(jnp.stack([space.contains(leaf) for space, leaf in zip(self.spaces, x, strict=True)]))


Space = Discrete | MultiDiscrete | Box | Dict | Tuple


def leaf_spaces(space: Space) -> PyTree:
    """The Box, Discrete and MultiDiscrete spaces of a space, in the structure of its values."""
    match space:
        case Dict():
            return {name: leaf_spaces(child) for name, child in space.spaces.items()}
        case Tuple():
            return tuple(leaf_spaces(child) for child in space.spaces)
    return space


def shape_of(space: Space) -> PyTree:
    """Shapes and dtypes of a space's values: `jax.ShapeDtypeStruct`s in its structure, in JAX's present dtypes."""

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    return jax.tree.map(shape, leaf_spaces(space))


def zeros(space: Space) -> PyTree:
    """A value with the structure, shapes and dtypes of the space, all zero; zero may lie outside of its bounds."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape_of(space))

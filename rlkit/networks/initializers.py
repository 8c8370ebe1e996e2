"""Weight initializers that may be vmapped over seeds, and the drawing of all weights of a network at once."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rlkit.types import Array, Key, PyTree

_SMALL = 256  # matrices up to this long and wide are padded to one shape, so that they share a loop
_MOST_STEPS = 100  # of Newton-Schulz; a square normal matrix of 64 rows takes about 20, its smallest singular value


class _Weights(NamedTuple):
    """What an initializer is to draw: orthogonal matrices side by side."""

    scale: float
    count: int
    shape: tuple[int, ...]  # [..., fan_in, fan_out]; leading axes count as fan-in

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Of each matrix."""
        return self.shape[-1] // self.count


# Where `together` collects, instead of drawing, what the initializers of one network want: a placeholder for each.
_wanted: ContextVar[list[tuple[Array, _Weights]] | None] = ContextVar("_wanted", default=None)


def orthogonal(scale: float = 1.0, count: int = 1) -> Callable[..., Array]:
    """Matrices with orthonormal columns (or rows, whichever are fewer) times `scale` (Saxe et al. 2014).

    Uniform over all such matrices: the orthogonal factor of a normal matrix.

    Args:
      scale: the norm of each column (or row).
      count: how many such matrices lie side by side; it divides fan_out.

    Returns:
      A flax initializer (key, shape [..., fan_in, fan_out], dtype) -> weights; leading axes count as fan-in.
    """

    def init(key: Key, shape: tuple[int, ...], dtype=jnp.float32, out_sharding=None) -> Array:
        weights, wanted = _Weights(scale, count, tuple(shape)), _wanted.get()
        if wanted is None:
            return _draw(key, (weights,))[0].astype(dtype)
        placeholder = jnp.zeros(shape, dtype)
        wanted.append((placeholder, weights))
        return placeholder

    return init


def together(init: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same `init(key, ...) -> params`, a flax module's for example, with all `orthogonal` weights drawn at once.

    One draw and one loop for all layers compile in a fraction of the time that one of each for every layer takes.
    """

    def init_together(key: Key, *args, **kwargs) -> PyTree:
        # What else is drawn is drawn from keys that flax folds out of this one.
        with _collecting() as wanted:
            params = init(jax.random.clone(key), *args, **kwargs)
        places = {id(placeholder): i for i, (placeholder, _) in enumerate(wanted)}
        leaves, treedef = jax.tree.flatten(params)
        if not wanted or sum(id(leaf) in places for leaf in leaves) < len(wanted):
            return init(key, *args, **kwargs)  # a lifted transformation has changed the placeholders
        drawn = _draw(key, tuple(weights for _, weights in wanted))
        return treedef.unflatten([drawn[places[id(x)]].astype(x.dtype) if id(x) in places else x for x in leaves])

    return init_together


def weight(module: nn.Module, name: str, init: Callable[..., Array], shape: tuple[int, ...]) -> Array:
    """The weight of `module` that is called `name`, float32, as `module.param` has it.

    That traces the initializer at every call, to compare shapes.
    """
    found: Any = None if module.is_initializing() else module.get_variable("params", name)
    if getattr(found, "shape", None) == shape:
        return found
    return module.param(name, init, shape, jnp.float32)  # is drawn, unboxed, or refused by name


@contextmanager
def _collecting() -> Iterator[list[tuple[Array, _Weights]]]:
    wanted: list[tuple[Array, _Weights]] = []
    token = _wanted.set(wanted)
    try:
        yield wanted
    finally:
        _wanted.reset(token)


@partial(jax.jit, static_argnums=1)
def _draw(key: Key, wanted: tuple[_Weights, ...]) -> list[Array]:
    """Float32 weights. Small matrices share one stack, and so do larger ones of the same size."""
    sizes = [(w.rows, w.columns) for w in wanted for _ in range(w.count)]
    largest = np.max([size for size in sizes if max(size) <= _SMALL], axis=0, initial=0)
    stacks: dict[tuple[int, ...], list[int]] = defaultdict(list)  # padded size -> places in `sizes`
    for place, size in enumerate(sizes):
        stacks[tuple(largest.tolist()) if max(size) <= _SMALL else size].append(place)
    counts = [len(places) * math.prod(padded) for padded, places in stacks.items()]
    normal = jnp.split(jax.random.normal(key, (sum(counts),), jnp.float32), np.cumsum(counts)[:-1].tolist())
    matrices: list[Array] = [jnp.zeros(())] * len(sizes)
    for part, (padded, places) in zip(normal, stacks.items(), strict=True):
        stack = _orthogonal_factors(part.reshape(-1, *padded), np.array([sizes[place] for place in places]))
        for factor, place in zip(stack, places, strict=True):
            rows, columns = sizes[place]
            matrices[place] = factor[:rows, :columns]
    in_order = iter(matrices)
    return [
        w.scale * jnp.concatenate([next(in_order) for _ in range(w.count)], axis=1).reshape(w.shape) for w in wanted
    ]


def _orthogonal_factors(normal: Array, sizes: np.ndarray) -> Array:
    """The factors U = X (X'X)^-1/2 of the upper left corners of matrices [L, R, C], of sizes [L, 2], and 0 elsewhere.

    Newton-Schulz steps X <- 3/2 X - 1/2 X X'X take all singular values in (0, sqrt(3)) to 1 (Higham 2008, section 8.3).
    A loop of products is little to compile, and plain XLA: the QR of LAPACK, which others use here, can hang a CPU
    program that holds several batched ones.
    """
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, normal.shape, axis) for axis in (1, 2))
    x = jnp.where((rows < sizes[:, :1, None]) & (columns < sizes[:, 1:, None]), normal, 0.0)
    x = x / jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2), keepdims=True))
    count = float(sizes.min(axis=1).sum())  # of singular values

    def unfinished(carry):
        _, missing, steps = carry
        return (missing > 1e-3 + 1e-6 * count) & (steps < _MOST_STEPS)

    def improve(carry):
        x, _, steps = carry
        missing = count - jnp.sum(jnp.square(x))  # the sum of 1 - s^2, whose terms a step all but squares
        cube = (x @ x.mT) @ x if x.shape[1] <= x.shape[2] else x @ (x.mT @ x)
        return 1.5 * x - 0.5 * cube, missing, steps + 1

    return jax.lax.while_loop(unfinished, improve, (x, jnp.float32(jnp.inf), 0))[0]

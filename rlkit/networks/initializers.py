"""Orthogonal weights that may be vmapped over seeds, and the drawing of all those of a network at once."""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict

from rlkit._mesh import vary_like
from rlkit.types import Array, Key, PyTree, Scalar

_STACK = "orthogonal"  # a random stream that only `stacked_init` opens, and the collection of the matrices to draw
_SMALL = 256  # matrices up to this long and wide are padded to one shape, so that they share a loop
_PANEL = 128  # columns of larger ones that are made orthogonal at a time
_MAX_STEPS = 100  # of Newton-Schulz; a square normal matrix of 64 rows takes about 20, its smallest singular value
_PRECISION = jax.lax.Precision.HIGHEST  # with fewer digits, the iteration would not reach its tolerance


class _Matrices(struct.PyTreeNode):
    """Orthogonal matrices side by side, of norm `scale` a column (or row), all static."""

    scale: float = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)
    shape: tuple[int, ...] = struct.field(pytree_node=False)  # [..., fan_in, fan_out]; leading axes count as fan-in

    @property
    def rows(self) -> int:
        """Rows of each matrix."""
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        """Columns of each matrix."""
        return self.shape[-1] // self.count


def orthogonal(scale: float = 1.0, count: int = 1) -> Callable[..., Array]:
    """Return an initializer of matrices with orthonormal columns (or rows, whichever are fewer) times `scale`.

    Uniform over all such matrices: the orthogonal factor of a normal matrix (Saxe et al. 2014).

    Args:
      scale: the norm of each column (or row).
      count: how many such matrices lie side by side; it divides fan_out.

    Returns:
      A flax initializer (key, shape [..., fan_in, fan_out], dtype) -> weights; leading axes count as fan-in.
    """

    def init(key: Key, shape: tuple[int, ...], dtype=jnp.float32, out_sharding=None) -> Array:
        return _draw(key, (_Matrices(scale, count, tuple(shape)),))[0].astype(dtype)

    return init


def orthogonal_param(module: nn.Module, name: str, shape: tuple[int, ...], scale: float = 1.0, count: int = 1) -> Array:
    """Declare the parameter `name` of `module`, float32 of `shape`, initialized by `orthogonal(scale, count)`.

    Under `stacked_init` it is 0 for the time being.
    """
    if not (module.is_initializing() and module.has_rng(_STACK)):
        return module.param(name, orthogonal(scale, count), shape, jnp.float32)
    module.put_variable(_STACK, name, _Matrices(scale, count, shape))
    return module.param(name, nn.initializers.zeros, shape, jnp.float32)


def stacked_init(module: nn.Module) -> Callable[..., PyTree]:
    """Return `module.init`, (key, ...) -> params, but with every `orthogonal_param` drawn in one stack.

    One draw and one loop for all layers compile in a fraction of the time that one of each for every layer takes.
    Layers inside of a lifted transformation (`nn.vmap`, `nn.scan`) draw their own.
    """

    def init(key: Key, *args, **kwargs) -> PyTree:
        # All other weights are drawn from keys that flax folds out of this one.
        streams = {name: jax.random.clone(key) for name in ("params", _STACK)}
        variables: dict[str, Any] = dict(module.init(streams, *args, **kwargs))
        matrices = flatten_dict(variables.pop(_STACK, {}))
        if not matrices:
            return variables
        drawn = dict(zip(matrices, _draw(key, tuple(matrices.values())), strict=True))
        return variables | {"params": unflatten_dict(flatten_dict(variables["params"]) | drawn)}

    return init


@partial(jax.jit, static_argnums=1)
def _draw(key: Key, weights: tuple[_Matrices, ...]) -> list[Array]:
    """Float32 weights. Small matrices share one stack, and so do larger ones of the same size."""
    sizes = [(w.rows, w.columns) for w in weights for _ in range(w.count)]
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
        w.scale * jnp.concatenate([next(in_order) for _ in range(w.count)], axis=1).reshape(w.shape) for w in weights
    ]


def _orthogonal_factors(normal: Array, sizes: np.ndarray) -> Array:
    """Orthonormal columns (or rows) from normal matrices [L, R, C]: of their upper left corners, of sizes [L, 2]."""
    if max(normal.shape[1:]) <= _SMALL:
        rows, columns = (jax.lax.broadcasted_iota(jnp.int32, normal.shape, axis) for axis in (1, 2))
        corner = (rows < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])
        x = jnp.where(corner, normal, 0.0)
        size = jnp.sqrt(jnp.sum(jnp.square(x), axis=(1, 2), keepdims=True))  # at least the largest singular value
        return _polar_factors(x / size, float(sizes.min(axis=1).sum()))
    return _by_panels(normal) if normal.shape[1] >= normal.shape[2] else _by_panels(normal.mT).mT


def _by_panels(normal: Array) -> Array:
    """Orthonormal columns from normal matrices [L, R, C], R >= C, panel by panel of columns.

    Each panel, less its part in the panels before it (twice, for the rounding), has its own polar factor: a block
    Gram-Schmidt. The polar factor of the whole takes seven times as long for 1024 columns.
    """
    matrices, rows, columns = normal.shape
    count = -(-columns // _PANEL)
    normal = jnp.pad(normal, ((0, 0), (0, 0), (0, count * _PANEL - columns)))
    product = partial(jnp.matmul, precision=_PRECISION)

    def orthogonalize(index: Array, done: Array) -> Array:
        panel = jax.lax.dynamic_slice_in_dim(normal, index * _PANEL, _PANEL, axis=2)
        for _ in range(2):
            panel = panel - product(done, product(done.mT, panel))
        # About the largest singular value of a normal matrix in the dimensions that are left.
        size = jnp.sqrt(jnp.maximum(rows - index * _PANEL, _PANEL)) + _PANEL**0.5
        panel = _polar_factors(panel / size, matrices * jnp.minimum(_PANEL, columns - index * _PANEL))
        return jax.lax.dynamic_update_slice_in_dim(done, panel, index * _PANEL, axis=2)

    return jax.lax.fori_loop(0, count, orthogonalize, vary_like(jnp.zeros_like(normal), normal))[:, :, :columns]


def _polar_factors(x: Array, count: Scalar) -> Array:
    """The factors U = X (X'X)^-1/2 of matrices [L, R, C] with `count` singular values in (0, sqrt(3)) and all else 0.

    Newton-Schulz steps X <- 3/2 X - 1/2 X X'X take them to 1 (Higham 2008, section 8.3). It is a loop of products and
    nothing else: several batched QR decompositions in one program, the usual way, can hang on a CPU.
    """
    product = partial(jnp.matmul, precision=_PRECISION)

    def unfinished(carry):
        _, missing, steps = carry
        return (missing > 1e-3 + 1e-6 * count) & (steps < _MAX_STEPS)

    def improve(carry):
        x, _, steps = carry
        missing = count - jnp.sum(jnp.square(x))  # the sum of 1 - s^2, whose terms a step all but squares
        cube = product(product(x, x.mT), x) if x.shape[1] <= x.shape[2] else product(x, product(x.mT, x))
        return 1.5 * x - 0.5 * cube, missing, steps + 1

    return jax.lax.while_loop(unfinished, improve, vary_like((x, jnp.float32(jnp.inf), 0)))[0]

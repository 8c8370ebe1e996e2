"""The product of a dense layer, whose weight gradient is computed in blocks of rows."""

import jax
from jax import lax

from rlkit._cpu.primitives import keep_layout, materialize_shared
from rlkit._cpu.switch import enabled
from rlkit.types import Array

_BLOCK, _NARROW = 128, 16  # rows and columns; see benchmarks/ppo/NOTES.md
_SMALL = 128 * 128  # numbers of a kernel


def affine(x: Array, kernel: Array, bias: Array) -> Array:
    """Return x [B, D] @ kernel [D, F] + bias [F], [B, F], all of one float dtype.

    The gradient of the kernel, a product over B that leaves only [D, F], is the sum of those of blocks of rows: XLA
    does not share it among a CPU's cores otherwise (a quarter of the whole gradient's time at B = 2048, D = F = 64).
    """
    return (_affine if enabled() and kernel.size <= _SMALL else _product)(x, kernel, bias)


def _product(x: Array, kernel: Array, bias: Array) -> Array:
    return lax.add(lax.dot(x, kernel), lax.broadcast(bias, x.shape[:1]))


_affine = jax.custom_jvp(_product)


def _blockwise(x: Array, kernel: Array) -> Array:
    """x @ kernel, each block of rows by itself, so that the transpose is a sum over blocks.

    The transpose is the product of two sides over the rows: the narrower one comes first, and if it is narrow and there
    are many rows, it is stored with the rows last. That takes a small copy, and a third of the time.
    """
    rows, (depth, size) = x.shape[0], kernel.shape
    blocks = max(rows // _BLOCK, 1) if rows % _BLOCK == 0 else 1
    transposed = blocks > 1 and min(depth, size) <= _NARROW
    x = x.reshape(blocks, rows // blocks, depth)
    if depth <= size:
        each = lax.broadcast(kernel, (blocks,))
        if not transposed:
            return lax.dot_general(x, each, (((2,), (1,)), ((0,), (0,)))).reshape(rows, size)
        y = lax.dot_general(keep_layout(x.transpose(0, 2, 1)), each, (((1,), (1,)), ((0,), (0,))))
        return y.reshape(rows, size)
    # Transposed before it is repeated, so that the sum over blocks is transposed back: XLA would transpose the product
    # of each block.
    each = lax.broadcast(kernel.T, (blocks,))
    y = lax.dot_general(each, x, (((2,), (2,)), ((0,), (0,))))
    return (keep_layout(y) if transposed else y).transpose(0, 2, 1).reshape(rows, size)


_affine.defjvps(
    lambda tangent, y, x, kernel, bias: lax.dot(tangent, kernel),
    lambda tangent, y, x, kernel, bias: _blockwise(materialize_shared(x, kernel), tangent),
    lambda tangent, y, x, kernel, bias: lax.broadcast(tangent, y.shape[:1]),
)

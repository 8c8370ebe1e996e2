"""Convolutions of images whose forward passes and gradients are fast inside of loops on a CPU.

XLA's CPU backend has fast kernels for convolutions whose operands are in the order NHWC, HWIO. It reorders others only
outside of loops, and gradients of JAX are in another order: inside of a `lax.scan` they take 14 times as long
(benchmarks/networks/NOTES.md). Other platforms compute JAX's gradients.
"""

import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlkit._cpu.affine import affine
from rlkit._cpu.switch import enabled
from rlkit.types import Array

_CHUNK = 16  # images whose gradients are computed at a time, so that they stay in the caches
_FEW = 16  # channels: XLA leaves a convolution of so few to Eigen, whose kernel reads fewer slowly
# Before jax 0.11 YNNPACK writes the patches of all images to memory, unless the result is summed at once.
_YNNPACK_IS_SLOW = jax.__version_info__ < (0, 11)
_SMALL = 16 * 16 * 16  # numbers of an image
_ORDER = ("NHWC", "HWIO", "NHWC")

Padding = int | str
Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, of rows and of columns
_NO_PADS: Pads = ((0, 0), (0, 0))


def convolution(x: Array, kernel: Array, stride: int, padding: Padding) -> Array:
    """Return the convolution of images x [B, H, W, C] with a kernel [h, w, C, F], [B, H', W', F], of one float dtype.

    Args:
      x: the images. Inside of `jax.shard_map` with `check_vma=True`, they vary over the same axes as the kernel.
      kernel: the weights, not flipped.
      stride: the step of the kernel, in pixels, along both axes.
      padding: "VALID", "SAME" or a number of zeros on each side of both axes.
    """
    if isinstance(padding, int):
        pads = ((padding, padding), (padding, padding))
    else:
        (top, bottom), (left, right) = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (stride, stride), padding)
        pads = ((top, bottom), (left, right))
    function = _convolution if enabled() and x.size and kernel.size else _plain
    return function(x, kernel, stride, pads)


def _plain(x: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=_ORDER)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(x: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    settings = {"stride": stride, "pads": pads}
    return lax.platform_dependent(x, kernel, cpu=partial(_on_cpu, **settings), default=partial(_plain, **settings))


def _forward(x: Array, kernel: Array, stride: int, pads: Pads) -> tuple[Array, tuple[Array, Array]]:
    return _convolution(x, kernel, stride, pads), (x, kernel)


def _backward(stride: int, pads: Pads, operands: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    """The two gradients, each by itself, so that XLA removes one that nobody uses: that of the first layer's input."""

    def of_input(x: Array, kernel: Array, grad: Array) -> Array:
        return jax.vjp(lambda x: _plain(x, kernel, stride, pads), x)[1](grad)[0]

    def of_kernel(x: Array, kernel: Array, grad: Array) -> Array:
        return jax.vjp(lambda kernel: _plain(x, kernel, stride, pads), kernel)[1](grad)[0]

    def choose(on_cpu: Callable[..., Array], default: Callable[..., Array]) -> Array:
        settings = {"stride": stride, "pads": pads}
        return lax.platform_dependent(*operands, grad, cpu=partial(on_cpu, **settings), default=default)

    return choose(_input_gradient, of_input), choose(_kernel_gradient, of_kernel)


_convolution.defvjp(_forward, _backward)


def _on_cpu(x: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """The convolution by patches times a matrix, by YNNPACK or by Eigen."""
    if _is_small(x):
        return _product(x, kernel, stride, pads)
    if not _YNNPACK_IS_SLOW:
        return _plain(x, kernel, stride, pads)
    if stride > 1 and x.shape[-1] < _FEW and not any(size % stride for size in kernel.shape[:2]):
        # Blocks of stride x stride pixels as channels: Eigen reads channels in packets, and single ones slowly.
        x, kernel = _blocks(_pad(x, _covered(x, kernel, stride, pads)), stride, 1), _blocks(kernel, stride, 0)
        stride, pads = 1, _NO_PADS
    return _dilated(x, kernel, pads, stride).astype(x.dtype)


def _input_gradient(x: Array, kernel: Array, grad: Array, stride: int, pads: Pads) -> Array:
    """The convolution of `grad`, with stride - 1 zeros between its entries, with the reversed kernel."""
    if _is_small(x):
        return jax.vjp(lambda x: _product(x, kernel, stride, pads), x)[1](grad)[0]
    reversed_kernel = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    rows, columns = (
        (size - 1 - before, x.shape[axis] + before - (grad.shape[axis] - 1) * stride - 1)
        for axis, size, (before, _) in zip((1, 2), kernel.shape, pads, strict=False)
    )

    def of_part(grad: Array) -> Array:
        return _dilated(grad, reversed_kernel, (rows, columns), dilation=stride).astype(x.dtype)

    if len(grad) <= 2 * _CHUNK:
        return of_part(grad)
    rest = len(grad) % _CHUNK
    parts = lax.map(of_part, grad[rest:].reshape(-1, _CHUNK, *grad.shape[1:]))
    parts = parts.reshape(-1, *parts.shape[2:])
    return jnp.concatenate([of_part(grad[:rest]), parts]) if rest else parts


def _kernel_gradient(x: Array, kernel: Array, grad: Array, stride: int, pads: Pads) -> Array:
    """The convolution of x, as images [C, H, W, B], with the gradient as a kernel [H', W', B, F], in parts summed."""
    if _is_small(x):
        return jax.vjp(lambda kernel: _product(x, kernel, stride, pads), kernel)[1](grad)[0]
    sides = _covered(x, kernel, stride, pads)

    def of_part(x: Array, grad: Array) -> Array:
        images, weights = _pad(x, sides).transpose(3, 1, 2, 0), grad.transpose(1, 2, 0, 3)
        return _dilated(images, weights, _NO_PADS, kernel_dilation=stride).transpose(1, 2, 0, 3)

    def add(number: Array, total: Array) -> Array:
        part = (lax.dynamic_slice_in_dim(a, first + number * _CHUNK, _CHUNK) for a in (x, grad))
        return total + of_part(*part)

    first = (len(x) - 1) % _CHUNK + 1
    total = of_part(x[:first], grad[:first])
    if len(x) > first:
        total = lax.fori_loop(0, (len(x) - first) // _CHUNK, add, total)
    return total.astype(kernel.dtype)


def _dilated(
    x: Array, kernel: Array, pads: Pads, stride: int = 1, *, dilation: int = 1, kernel_dilation: int = 1
) -> Array:
    """The convolution of x, with dilation - 1 zeros between its pixels; at least float32.

    XLA has two libraries for it, and gives YNNPACK those of many channels whose images have no such zeros. Where
    YNNPACK is slow, the rows of x and of the kernel are dilated by 2 and the stride is doubled: Eigen computes the same
    products then.
    """
    by_ynnpack = dilation == 1 and max(kernel.shape[2:]) > _FEW
    times, (rows, columns) = 2 if _YNNPACK_IS_SLOW and by_ynnpack else 1, pads
    return lax.conv_general_dilated(
        x,
        kernel,
        (times * stride, stride),
        ((times * rows[0], times * rows[1]), columns),
        lhs_dilation=(times * dilation, dilation),
        rhs_dilation=(times * kernel_dilation, kernel_dilation),
        dimension_numbers=_ORDER,
        preferred_element_type=np.promote_types(x.dtype, np.float32),
    )


def _blocks(x: Array, stride: int, axis: int) -> Array:
    """x with blocks of stride x stride pixels, which begin at `axis`, joined along the axis of channels after them."""
    before, (rows, columns, channels), after = x.shape[:axis], x.shape[axis : axis + 3], x.shape[axis + 3 :]
    x = x.reshape(*before, rows // stride, stride, columns // stride, stride, channels, *after)
    x = jnp.moveaxis(x, axis + 1, axis + 2)  # [..., rows, columns, stride, stride, channels, ...]
    return x.reshape(*before, rows // stride, columns // stride, stride * stride * channels, *after)


def _is_small(x: Array) -> bool:
    """True where patches times a matrix take less time."""
    return x.shape[1] * x.shape[2] * x.shape[3] <= _SMALL


def _product(x: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """The convolution as a product: of the patches of x, joined along the channels, and the kernel as a matrix."""
    x = _pad(x, _covered(x, kernel, stride, pads))
    rows, columns, _, filters = kernel.shape
    ends = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    offsets = itertools.product(range(rows), range(columns))
    patches = [x[:, i : i + ends[0] : stride, j : j + ends[1] : stride] for i, j in offsets]
    joined = jnp.concatenate(patches, axis=-1)
    flat = joined.reshape(-1, joined.shape[-1])
    return affine(flat, kernel.reshape(-1, filters), jnp.zeros(filters, x.dtype)).reshape(*joined.shape[:-1], filters)


def _covered(x: Array, kernel: Array, stride: int, pads: Pads) -> list[tuple[int, int, int]]:
    """Zeros before and after the rows and columns of x (negative: to cut), so that the kernel covers all of them."""
    sides = []
    for length, size, (before, after) in zip(x.shape[1:3], kernel.shape[:2], pads, strict=True):
        unused = (length + before + after - size) % stride
        sides.append((before, after - unused, 0))
    return sides


def _pad(x: Array, sides: list[tuple[int, int, int]]) -> Array:
    """x [B, H, W, C] with zeros before, after and between its rows and columns; cut where their number is negative."""
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *sides, (0, 0, 0)])

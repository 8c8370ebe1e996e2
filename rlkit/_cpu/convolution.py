"""Convolutions of images, whose gradients are fast inside of loops on a CPU.

XLA's CPU backend has a fast kernel for convolutions whose operands are in the order NHWC, HWIO. It reorders others only
outside of loops, and gradients of JAX are in another order: inside of a `lax.scan` they take 14 times as long
(benchmarks/networks/NOTES.md). Other platforms compute JAX's gradients.
"""

import itertools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rlkit._cpu.affine import affine
from rlkit._cpu.switch import enabled
from rlkit.types import Array

_CHUNK = 16  # images that are convolved at a time, so that they stay in the caches
_SMALL = 16 * 16 * 16  # numbers of an image
_ORDER = ("NHWC", "HWIO", "NHWC")

Padding = int | str
Pads = tuple[tuple[int, int], tuple[int, int]]  # before and after, of rows and of columns


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
    def on_cpu(x: Array, kernel: Array) -> Array:
        return _product(x, kernel, stride, pads) if _is_small(x) else _plain(x, kernel, stride, pads)

    return lax.platform_dependent(x, kernel, cpu=on_cpu, default=lambda x, kernel: _plain(x, kernel, stride, pads))


def _forward(x: Array, kernel: Array, stride: int, pads: Pads) -> tuple[Array, tuple[Array, Array]]:
    """The convolution, in the chunks that its gradients are computed in: 256 images at once take 1.6 times as long."""

    def on_cpu(x: Array, kernel: Array) -> Array:
        if _is_small(x):
            return _product(x, kernel, stride, pads)
        return _map(lambda part: _plain(part, kernel, stride, pads), x)

    default = partial(_plain, stride=stride, pads=pads)
    return lax.platform_dependent(x, kernel, cpu=on_cpu, default=default), (x, kernel)


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


def _input_gradient(x: Array, kernel: Array, grad: Array, stride: int, pads: Pads) -> Array:
    """The convolution of `grad`, with stride - 1 zeros between its entries, with the reversed kernel."""
    if _is_small(x):
        return jax.vjp(lambda x: _product(x, kernel, stride, pads), x)[1](grad)[0]
    reversed_kernel = kernel[::-1, ::-1].transpose(0, 1, 3, 2)
    sides = [
        (size - 1 - before, x.shape[axis] + before - (grad.shape[axis] - 1) * stride - 1, stride - 1)
        for axis, size, (before, _) in zip((1, 2), kernel.shape, pads, strict=False)
    ]
    return _map(lambda part: _plain(_pad(part, sides), reversed_kernel, 1, ((0, 0), (0, 0))), grad)


def _kernel_gradient(x: Array, kernel: Array, grad: Array, stride: int, pads: Pads) -> Array:
    """The convolution of x, as images [C, H, W, B], with the gradient as a kernel [H', W', B, F], in parts summed."""
    if _is_small(x):
        return jax.vjp(lambda kernel: _product(x, kernel, stride, pads), kernel)[1](grad)[0]
    sides = _covered(x, kernel, stride, pads)

    def of_part(x: Array, grad: Array) -> Array:
        images, weights = _pad(x, sides).transpose(3, 1, 2, 0), grad.transpose(1, 2, 0, 3)
        summed = lax.conv_general_dilated(
            images,
            weights,
            (1, 1),
            "VALID",
            rhs_dilation=(stride, stride),
            dimension_numbers=_ORDER,
            preferred_element_type=jnp.float32,
        )
        return summed.transpose(1, 2, 0, 3)

    (first, rest), (first_grad, rest_grad) = _split(x), _split(grad)
    total = of_part(first, first_grad)
    if len(rest):
        total = lax.scan(lambda total, part: (total + of_part(*part), None), total, (rest, rest_grad))[0]
    return total.astype(kernel.dtype)


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


def _split(x: Array) -> tuple[Array, Array]:
    """The first 1 to _CHUNK rows, and the others [n, _CHUNK, ...]."""
    first = (len(x) - 1) % _CHUNK + 1
    return x[:first], x[first:].reshape(-1, _CHUNK, *x.shape[1:])


def _map(function: Callable[[Array], Array], x: Array) -> Array:
    """function(x), of rows [B, ...] that do not depend on each other, in chunks."""
    if len(x) <= _CHUNK:
        return function(x)
    if len(x) % _CHUNK == 0:
        parts = lax.map(function, x.reshape(-1, _CHUNK, *x.shape[1:]))
        return parts.reshape(-1, *parts.shape[2:])
    first, rest = _split(x)
    parts = lax.map(function, rest)
    return jnp.concatenate([function(first), parts.reshape(-1, *parts.shape[2:])])

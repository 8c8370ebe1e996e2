"""rlkit._cpu.convolution: the derivatives of `lax.conv_general_dilated`."""

import importlib
import os
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from rlkit._cpu import convolution

pytestmark = pytest.mark.thorough
MODULE = importlib.import_module("rlkit._cpu.convolution")  # whose name the function has as well


@pytest.fixture(autouse=True)
def _few_are_small(monkeypatch):
    """Images of more than 16 x 16 pixels with 3 channels are convolved, and smaller ones are patches."""
    monkeypatch.setattr(MODULE, "_SMALL", 16 * 16 * 3)


def stock(x, kernel, stride, padding):
    sides = [(padding, padding)] * 2 if isinstance(padding, int) else padding
    return lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def arrays(batch, shape, size, channels=3, filters=20, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (batch, *shape, channels), dtype)
    return x, jax.random.normal(keys[1], (*size, channels, filters), dtype)


def value_and_gradients(function, x, kernel, stride, padding):
    value, pull = jax.vjp(lambda x, kernel: function(x, kernel, stride, padding), x, kernel)
    return value, *pull(jnp.cos(value))


def assert_close(found, expected, tolerance=1e-5):
    """Each array, relative to the largest number in it."""

    def close(a, b):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=0.0))

    jax.tree.map(close, found, expected)


CASES = (
    (3, (12, 12), (8, 8), 4, "VALID"),  # the Nature CNN's
    (70, (9, 8), (2, 3), 2, "SAME"),
    (64, (11, 10), (4, 4), 3, 1),  # the stride divides neither side
    (2, (4, 4), (2, 2), 1, 3),  # more padding than the kernel has pixels
    (0, (5, 5), (3, 3), 1, 0),
    (70, (17, 18), (2, 3), 2, "SAME"),  # from here on, images that are not patches: two chunks and a part of one
    (64, (18, 20), (4, 4), 3, 1),  # two chunks; the stride divides neither side
    (5, (19, 18), (4, 2), 2, 1),  # the stride divides the kernel's sides
    (2, (18, 17), (2, 2), 5, 0),  # columns at the end that no kernel covers
)
MORE = (
    (3, (9, 8), (3, 3), 1, "VALID"),
    (32, (9, 8), (3, 2), 2, "SAME"),
    (33, (7, 7), (2, 3), 2, 2),
    (2, (10, 10), (3, 3), 4, "VALID"),  # a stride longer than the kernel
    (2, (12, 12), (2, 2), 5, 0),  # columns at the end that no patch covers
    (2, (5, 5), (1, 1), 1, 0),
    (3, (20, 19), (3, 3), 1, "VALID"),  # from here on, images that are not patches
    (3, (28, 28), (8, 8), 4, "VALID"),
    (32, (19, 18), (3, 2), 2, "SAME"),
    (33, (17, 17), (2, 3), 2, 2),
    (2, (20, 20), (3, 3), 4, "VALID"),
    (2, (3, 90), (2, 2), 1, 3),
)


@pytest.mark.parametrize(
    ("batch", "shape", "size", "stride", "padding"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_derivatives_are_those_of_jax(batch, shape, size, stride, padding):
    x, kernel = arrays(batch, shape, size)
    expected = jax.jit(partial(value_and_gradients, stock, stride=stride, padding=padding))(x, kernel)
    found = partial(value_and_gradients, convolution, stride=stride, padding=padding)
    assert_close(jax.jit(found)(x, kernel), expected)


@pytest.mark.parametrize("shape", [pytest.param((9, 8), marks=pytest.mark.slow), (19, 18)])
def test_derivatives_that_are_not_compiled(shape):
    x, kernel = arrays(33, shape, (3, 2))
    expected = jax.jit(partial(value_and_gradients, stock, stride=2, padding="SAME"))(x, kernel)
    assert_close(value_and_gradients(convolution, x, kernel, 2, "SAME"), expected)


def descend(function, x, kernel):
    """The kernel after three steps of gradient descent on two layers, in a scan."""

    def loss(kernel):
        return jnp.mean(jnp.sin(function(function(x, kernel, 1, 1), kernel, 2, "VALID")))

    def step(kernel, _):
        return kernel - 0.1 * jax.grad(loss)(kernel), None

    return lax.scan(step, kernel, None, 3)[0]


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), pytest.param((0, None), marks=pytest.mark.slow)])
def test_many_kernels_and_images(axes):
    x, kernel = arrays(40, (18, 18), (3, 3), filters=3)
    scales = jnp.arange(1.0, 4.0)[:, None, None, None, None] / 3
    arguments = [scales * a[None] if axis == 0 else a for a, axis in zip((x, kernel), axes, strict=True)]
    expected = jax.vmap(partial(descend, stock), axes)(*arguments)
    assert_close(jax.jit(jax.vmap(partial(descend, convolution), axes))(*arguments), expected)


def test_second_derivatives():
    x, kernel = arrays(5, (18, 18), (3, 3))

    def penalty(function, kernel):
        return jnp.sum(jnp.square(jax.grad(lambda kernel: jnp.mean(jnp.sin(function(x, kernel, 2, 1))))(kernel)))

    assert_close(jax.grad(partial(penalty, convolution))(kernel), jax.grad(partial(penalty, stock))(kernel))


@pytest.mark.parametrize("batch", [8, pytest.param(640, marks=pytest.mark.slow)])
def test_bfloat16(batch):
    """Results are as accurate as those of JAX, beside float32."""
    x, kernel = arrays(batch, (19, 19), (3, 3), dtype=jnp.bfloat16)
    found, own = (value_and_gradients(f, x, kernel, 2, "SAME") for f in (convolution, stock))
    exact = value_and_gradients(stock, x.astype(jnp.float32), kernel.astype(jnp.float32), 2, "SAME")
    assert {a.dtype for a in found} == {jnp.dtype(jnp.bfloat16)}
    for a, b, c in zip(found, own, exact, strict=True):
        errors = [float(jnp.max(jnp.abs(d.astype(jnp.float32) - c))) for d in (a, b)]
        assert errors[0] <= 1.5 * errors[1]


DIVIDED = """
import importlib
importlib.import_module("rlkit._cpu.convolution")._SMALL = 16 * 16 * 3
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
from rlkit.networks.encoders.conv import Conv, ConvLayer
encoder = Conv((ConvLayer(4, 3, 2), ConvLayer(4, 2, 1)), (5,))
x = jax.random.normal(jax.random.key(0), (80, 19, 19, 3))
params = encoder.init(jax.random.key(1), x)
mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
def descend(gradient, params):
    return lax.scan(lambda w, _: (jax.tree.map(lambda a, g: a - g, w, gradient(w)), None), params, None, 3)[0]
def gradient(x, params):
    return jax.grad(lambda params: jnp.mean(jnp.sin(encoder.apply(params, x))))(params)
def of_device(check, x, params):  # with the check, JAX adds up the gradient of parameters that do not vary
    share = lambda w: jax.tree.map(lambda g: (g if check else lax.psum(g, "data")) / 2, gradient(x, w))
    return descend(share, params)
expected = jax.jit(partial(descend, partial(gradient, x)))(params)
for check in (True, False):
    divided = jax.shard_map(
        partial(of_device, check), mesh=mesh, in_specs=(P("data"), P()), out_specs=P(), check_vma=check
    )
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), jax.jit(divided)(x, params), expected)
"""


@pytest.mark.slow
def test_images_divided_over_devices():
    """Three steps of gradient descent of an encoder, with and without JAX's check of what varies over the devices."""
    env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", DIVIDED], env=env, check=True, timeout=120)


def convolutions(text):
    return re.findall(r"= .* convolution\(.*", text)


@pytest.mark.parametrize(("batch", "count"), [(16, 2), (64, 3)])
def test_the_gradient_of_the_first_layers_images_is_not_computed(batch, count):
    """What remains is the forward pass and the kernel's gradient, that of the first chunk by itself."""
    x, kernel = arrays(batch, (18, 18), (3, 3))

    def step(kernel, _):
        return kernel - jax.grad(lambda kernel: jnp.mean(jnp.sin(convolution(x, kernel, 1, 1))))(kernel), None

    program = jax.jit(lambda kernel: lax.scan(step, kernel, None, 3)[0]).lower(kernel).compile().as_text()
    assert len(convolutions(program)) == count


def test_convolutions_are_in_the_order_of_the_fast_kernel():
    """In a loop, NHWC and HWIO; and with a dilation of the images, which XLA gives to Eigen, where that is faster."""
    x, kernel = arrays(4, (18, 18), (3, 3), channels=20)
    for function, fast in ((convolution, True), (stock, False)):
        program = jax.jit(partial(descend, function)).lower(x, kernel).compile().as_text()
        found = convolutions(program)
        assert len(found) == 5  # two layers forward, two kernels, one layer's images
        assert all("dim_labels=b01f_01io->b01f" in line for line in found) == fast
        if fast and MODULE._YNNPACK_IS_SLOW:
            assert all("lhs_dilate" in line for line in found)


def test_other_platforms_compute_what_jax_computes():
    x, kernel = arrays(40, (18, 18), (3, 3), filters=3)

    def operations(function, platform):
        lowered = jax.jit(partial(descend, function)).trace(x, kernel).lower(lowering_platforms=(platform,))
        return sorted(re.findall(r"stablehlo\.convolution.*?:", lowered.as_text().replace("%", "")))

    def shapes(function, platform):
        return sorted(re.sub(r"\(.*?\)", "", line, count=1) for line in operations(function, platform))

    assert shapes(convolution, "cuda") == shapes(stock, "cuda")
    assert shapes(convolution, "cpu") != shapes(stock, "cpu")

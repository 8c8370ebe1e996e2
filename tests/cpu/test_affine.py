"""rlkit._cpu.affine: the derivatives of a plain product."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit._cpu import affine
from rlkit.networks.encoders.mlp import MLP

pytestmark = pytest.mark.thorough


def product(x, kernel, bias):
    return x @ kernel + bias[None]


@pytest.mark.parametrize(
    ("depth", "size", "rows"),
    [
        pytest.param(*shape, rows, marks=() if rows == usual else pytest.mark.slow)
        for shape, usual in (((64, 64), 128), ((17, 64), 1024), ((64, 17), None), ((4, 64), None), ((64, 4), 256))
        for rows in (128, 256, 1024)
    ],
)
def test_kernels_of_a_vmap_share_a_constant_input(depth, size, rows):
    """XLA's CPU backend returns anything for the plain sum over blocks here."""
    keys = jax.random.split(jax.random.key(0))
    kernels, weight = jax.random.normal(keys[0], (3, depth, size)), jax.random.normal(keys[1], (rows, size))

    def gradients(function):
        def loss(kernel):
            return jnp.sum(weight * jnp.tanh(function(jnp.ones((rows, depth)), kernel, jnp.zeros(size))))

        return jax.jit(jax.vmap(jax.grad(loss)))(kernels)

    np.testing.assert_allclose(gradients(affine), gradients(product), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rows", "depth", "size"),  # no row, one block and three, narrow sides and wide ones
    [
        *[(0, 5, 3), (384, 5, 3), (384, 3, 5), (384, 18, 20), (384, 20, 18)],
        *(
            pytest.param(*shape, marks=pytest.mark.slow)  # the last kernel is too large for blocks
            for shape in ((0, 3, 5), (1, 5, 3), (100, 5, 3), (384, 4, 1), (256, 130, 128))
        ),
    ],
)
def test_derivatives_are_those_of_the_product(rows, depth, size):
    shapes = 2 * [(rows, depth), (depth, size), (size,)]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    x, kernel, bias, *tangents = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))

    @partial(jax.jit, static_argnums=0)
    def derivatives(function):
        value, pull = jax.vjp(function, x, kernel, bias)
        forward = jax.jvp(function, (x, kernel, bias), tuple(tangents))
        hessian = jax.hessian(lambda row: jnp.sum(jnp.sin(function(x, kernel.at[0].set(row), bias))))(kernel[0])
        return forward, value, pull(jnp.cos(value)), hessian

    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    expected = derivatives(product)
    jax.tree.map(close, derivatives(affine), expected)
    value, pull = jax.vjp(affine, x, kernel, bias)  # not compiled
    jax.tree.map(close, (value, pull(jnp.cos(value))), expected[1:3])


def test_a_network_has_gradients_of_an_empty_batch():
    network = MLP((8, 4))
    params = network.init(jax.random.key(0), jnp.zeros(3))
    gradient = jax.grad(lambda params: jnp.sum(network.apply(params, jnp.zeros((0, 3)))))(params)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, np.zeros(x.shape)), gradient)

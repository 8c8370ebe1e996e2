"""rlkit.networks.initializers: orthogonal weights, which may be vmapped, and weights drawn together."""

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_networks import small_network, small_settings

from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.initializers import orthogonal, stacked_init
from rlkit.spaces import Box


def assert_orthogonal(weights, scale, atol=1e-5):
    """The columns of [..., columns], or its rows where they are fewer, are orthogonal and of norm `scale`."""
    w = np.asarray(weights).reshape(-1, weights.shape[-1])
    gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(gram, scale**2 * np.eye(len(gram)), atol=atol * scale**2)


@pytest.mark.parametrize(
    "shape",
    [
        *((1, 1), (7, 3), (3, 7), (3, 3, 4, 16), (256, 256)),
        *((300, 2), (257, 257), (200, 520)),  # in panels
    ],
)
def test_orthogonal_weights_are_orthogonal(shape):
    assert_orthogonal(jax.jit(orthogonal(2.0), static_argnums=1)(jax.random.key(1), shape), 2.0)


def test_orthogonal_weights_side_by_side():
    w = orthogonal(2.0, count=3)(jax.random.key(1), (5, 12))
    blocks = np.split(np.asarray(w), 3, axis=1)
    for block in blocks:
        assert_orthogonal(block, 2.0)
    assert np.abs(blocks[0] - blocks[1]).max() > 0.1


@pytest.mark.thorough
def test_orthogonal_weights_of_many_seeds_are_those_of_each():
    keys = jax.random.split(jax.random.key(2), 20)
    many = jax.vmap(lambda k: orthogonal()(k, (8, 8)))(keys)
    for w, key in zip(many, keys, strict=True):
        assert_orthogonal(w, 1.0)
        np.testing.assert_allclose(w, orthogonal()(key, (8, 8)), atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (3, 3)])
def test_orthogonal_weights_have_no_preferred_direction(shape):
    """Moments of the uniform law on orthonormal frames in three dimensions: 0, 1/3, 1/5, and E[det] = 0."""
    w = np.asarray(jax.vmap(lambda k: orthogonal()(k, shape))(jax.random.split(jax.random.key(0), 4000)))
    np.testing.assert_allclose(w.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(np.square(w).mean(0), 1 / 3, atol=0.02)
    np.testing.assert_allclose((w**4).mean(0), 1 / 5, atol=0.02)
    np.testing.assert_allclose(np.mean(w[:, 0, 0] * w[:, 1, 1]), 0, atol=0.03)
    if shape == (3, 3):
        assert abs(np.linalg.det(w).mean()) < 0.1


def test_large_orthogonal_weights_have_no_preferred_direction():
    """In each panel: fourth moments of the uniform law, 3 / (n (n + 2)); the trace is about standard normal."""
    w = np.asarray(jax.jit(orthogonal(), static_argnums=1)(jax.random.key(0), (300, 300)))
    for panel in (w[:, :128], w[:, 128:256], w[:, 256:]):
        np.testing.assert_allclose((panel**4).mean(), 3 / (300 * 302), rtol=0.1)
    assert abs(np.trace(w)) < 4
    assert abs(np.trace(w[:, ::-1])) < 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"action_space": Box(-1, 1, (2,)), "layer_norm": True},
        {"obs_space": Box(0, 255, (10, 10, 2), np.uint8), "encoder": "conv"},
        {"recurrent": "gru"},
        {"recurrent": "lstm", "shared_torso": True},
    ],
)
def test_weights_drawn_together_have_the_structure_and_laws_of_weights_drawn_apart(settings):
    module, network = small_network(**settings)
    obs = small_settings(**settings)["obs_space"].sample(jax.random.key(5))
    arguments = (obs, network.memory) if jax.tree.leaves(network.memory) else (obs,)
    with jax.debug_key_reuse(True):
        params, _ = network.init(jax.random.key(0), *arguments)
        apart = module.init(jax.random.key(0), *arguments)
        again, _ = jax.jit(network.init)(jax.random.key(0), *arguments)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), apart)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), params, again)
    gates = {"none": 1, "gru": 3, "lstm": 4}[module.recurrent]
    apart = dict(jax.tree_util.tree_leaves_with_path(apart))
    for path, weights in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith("kernel"):  # biases, scales of norms, log_std: not drawn
            np.testing.assert_array_equal(weights, apart[path])
            continue
        assert np.abs(weights - apart[path]).max() > 1e-4
        weights = weights.reshape(-1, weights.shape[-1])  # those of a convolution, over rows, columns and channels
        for gate in jnp.split(weights, gates if "cells" in name and "inputs" not in name else 1, axis=1):
            scale = np.linalg.norm(gate) / min(gate.shape) ** 0.5
            assert_orthogonal(gate, scale)
        np.testing.assert_allclose(np.linalg.norm(weights), np.linalg.norm(apart[path]), rtol=1e-4)
    assert np.linalg.norm(params["params"]["policy"]["kernel"]) == pytest.approx(0.01 * 2**0.5, rel=1e-3)
    value, policy = (params["params"][head]["kernel"][:, 0] for head in ("value", "policy"))
    assert abs(np.dot(value, policy)) < 0.9 * 0.01  # of different random numbers


def test_weights_drawn_together_of_many_seeds_are_those_of_each():
    init = stacked_init(MLP((8, 4)))
    keys = jax.random.split(jax.random.key(1), 3)
    many, alone = jax.jit(jax.vmap(init, (0, None)))(keys, jnp.zeros(3)), jax.jit(init)
    for i, key in enumerate(keys):
        one = alone(key, jnp.zeros(3))
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y, atol=1e-5), many, one)


def test_weights_of_a_lifted_module_are_drawn_too():
    twice = nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2)((8, 4))
    params = jax.jit(stacked_init(twice))(jax.random.key(0), jnp.zeros(3))["params"]
    for layer in ("Dense_0", "Dense_1"):
        for kernel in params[layer]["kernel"]:
            assert_orthogonal(kernel, 2**0.5)


def test_weights_of_a_module_without_orthogonal_ones_are_those_of_flax():
    module, key, x = nn.Dense(3), jax.random.key(0), jnp.zeros(2)
    jax.tree.map(np.testing.assert_array_equal, stacked_init(module)(key, x), module.init(key, x))


def test_orthogonal_weights_are_made_of_products_in_full_precision():
    with jax.default_matmul_precision("bfloat16"):
        text = jax.jit(lambda key: orthogonal()(key, (8, 4))).lower(jax.random.key(0)).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 2
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_no_lapack_call_is_in_a_vmapped_initialization():
    program = jax.jit(jax.vmap(lambda k: orthogonal()(k, (8, 8)))).lower(jax.random.split(jax.random.key(0), 3))
    targets = re.findall(r'custom_call_target="([^"]+)"', program.compile().as_text())
    assert not [t for t in targets if "lapack" in t or "qr" in t.lower()]

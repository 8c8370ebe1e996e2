"""rlkit.networks: weights that may be vmapped, features of every space, recurrence along time."""

import itertools
import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamNotFoundError, ScopeParamShapeError

from rlkit.networks import actor_critic, critics
from rlkit.networks.features import action_mask, features, image_shape, real_valued, replace_real_valued
from rlkit.networks.initializers import orthogonal, stacked_init
from rlkit.networks.recurrent import unroll, where_rows
from rlkit.networks.torsos import MLP, Conv
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple


def assert_orthogonal(weights, scale, atol=1e-5):
    """The columns of [..., columns], or its rows where they are fewer, are orthogonal and of norm `scale`."""
    w = np.asarray(weights).reshape(-1, weights.shape[-1])
    gram = w.T @ w if w.shape[0] >= w.shape[1] else w @ w.T
    np.testing.assert_allclose(gram, scale**2 * np.eye(len(gram)), atol=atol * scale**2)


@pytest.mark.parametrize(
    "shape", [(1, 1), (4, 4), (7, 3), (3, 7), (64, 64), (3, 3, 4, 16), (1, 5), (5, 1), (300, 2), (5, 300), (256, 256)]
)
def test_orthogonal_weights_are_orthogonal(shape):
    assert_orthogonal(orthogonal(2.0)(jax.random.key(1), shape), 2.0)


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


def small_settings(**settings):
    return {
        "obs_space": Box(-1, 1, (3,)), "policy_size": 2, "real_valued": False, "torso": "mlp", "hidden_sizes": (8, 8),
        "channels": (4,), "activation": "tanh", "layer_norm": False, "shared_torso": False, "recurrent": "none",
        "memory_size": 4, "log_std_init": -1.0, "gsde": False, "compute_dtype": "float32", **settings,
    }  # fmt: skip


def small_network(**settings):
    """-> the module, and as a network."""
    network = actor_critic.actor_critic(**small_settings(**settings))
    parts = network.parts[0] if network.parts else network.apply
    return (parts.func if network.parts else parts).__self__, network


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"real_valued": True, "layer_norm": True},
        {"obs_space": Box(0, 255, (10, 10, 2), np.uint8), "torso": "conv"},
        {"recurrent": "gru"},
        {"recurrent": "lstm", "shared_torso": True},
    ],
)
def test_weights_drawn_together_have_the_structure_and_laws_of_weights_drawn_apart(settings):
    module, network = small_network(**settings)
    obs = small_settings(**settings)["obs_space"].sample(jax.random.key(5))
    arguments = (obs, network.memory) if jax.tree.leaves(network.memory) else (obs,)
    with jax.debug_key_reuse(True):
        params = network.init(jax.random.key(0), *arguments)
        apart = module.init(jax.random.key(0), *arguments)
        again = jax.jit(network.init)(jax.random.key(0), *arguments)
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
    many = jax.vmap(init, (0, None))(keys, jnp.zeros(3))
    for i, key in enumerate(keys):
        one = init(key, jnp.zeros(3))
        jax.tree.map(lambda x, y, i=i: np.testing.assert_allclose(x[i], y, atol=1e-5), many, one)


def test_weights_of_a_lifted_module_are_drawn_too():
    twice = nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2)((8, 4))
    params = stacked_init(twice)(jax.random.key(0), jnp.zeros(3))["params"]
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


OBS_SPACE = Dict(
    {
        "action_mask": Box(0, 1, (3,), np.int8),
        "kind": Discrete(4),
        "pixels": Box(0, 255, (2, 2), np.uint8),
        "pair": Tuple((Box(-1, 1, (2,)), MultiDiscrete((2, 3)))),
    }
)


def test_features_join_every_kind_of_leaf_but_the_mask():
    obs = {
        "action_mask": jnp.array([1, 0, 1], jnp.int8),
        "kind": jnp.int32(2),
        "pixels": jnp.array([[0, 255], [51, 0]], jnp.uint8),
        "pair": (jnp.array([0.5, -0.5]), jnp.array([1, 0])),
    }
    x = features(OBS_SPACE, obs)
    expected = [*[0, 0, 1, 0], *[0.5, -0.5], *[0, 1, 1, 0, 0], *[0, 1, 0.2, 0]]
    np.testing.assert_allclose(x, np.asarray(expected, np.float32), atol=1e-6)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), obs)
    np.testing.assert_array_equal(features(OBS_SPACE, batch), np.stack([x] * 5))
    np.testing.assert_array_equal(action_mask(obs), [True, False, True])
    assert action_mask(jnp.zeros(3)) is None


def test_only_real_numbers_are_normalized():
    obs = OBS_SPACE.sample(jax.random.key(0))
    (real,) = real_valued(OBS_SPACE, obs)
    np.testing.assert_array_equal(real, obs["pair"][0])
    replaced = replace_real_valued(OBS_SPACE, obs, [real + 1])
    np.testing.assert_array_equal(replaced["pair"][0], obs["pair"][0] + 1)
    replaced["pair"] = obs["pair"]
    jax.tree.map(np.testing.assert_array_equal, replaced, obs)


def test_a_mask_of_floats_is_not_normalized():
    space = Dict({"action_mask": Box(0, 1, (2,)), "x": Box(-1, 1, (1,))})
    obs = {"action_mask": jnp.ones(2), "x": jnp.zeros(1)}
    assert len(real_valued(space, obs)) == 1


def test_images_keep_their_shape():
    image = Box(0, 255, (10, 10, 4), np.uint8)
    assert image_shape(image) == (10, 10, 4)
    assert image_shape(Dict({"action_mask": Box(0, 1, (2,)), "x": image})) == (10, 10, 4)
    assert image_shape(OBS_SPACE) is None
    assert features(image, jnp.zeros((7, 10, 10, 4), jnp.uint8), image=True).shape == (7, 10, 10, 4)


@pytest.mark.parametrize(("size", "channels", "flat"), [(10, (4,), 8 * 8 * 4), (84, (4, 4), 39 * 39 * 4)])
def test_only_large_images_are_halved(size, channels, flat):
    torso = Conv(channels=channels, hidden_sizes=(16,))
    params = jax.eval_shape(torso.init, jax.random.key(0), jnp.zeros((size, size, 1)))["params"]
    assert params["MLP_0"]["Dense_0"]["kernel"].shape == (flat, 16)


def test_torsos_take_any_leading_axes():
    torso = MLP((8, 8), layer_norm=True)
    x = jax.random.normal(jax.random.key(0), (2, 3, 5))
    params = torso.init(jax.random.key(1), x[0, 0])
    np.testing.assert_allclose(torso.apply(params, x)[1, 2], torso.apply(params, x[1, 2]), rtol=1e-5, atol=1e-6)


def test_bfloat16_torsos_keep_float32_weights_and_heads():
    network, _ = small_network(compute_dtype="bfloat16")
    params = network.init(jax.random.key(0), jnp.zeros(3))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert {x.dtype for x in network.apply(params, jnp.zeros((5, 3)))} == {jnp.dtype(jnp.float32)}
    assert "bf16" in jax.jit(network.apply).lower(params, jnp.zeros((5, 3))).as_text()


def test_weights_of_another_shape_and_missing_ones_are_named():
    module, x = MLP((4,)), jnp.ones((2, 3))
    params = module.init(jax.random.key(0), x)
    with pytest.raises(ScopeParamShapeError, match="kernel"):
        module.apply(params, jnp.ones((2, 5)))
    del params["params"]["Dense_0"]["bias"]
    with pytest.raises(ScopeParamNotFoundError, match="bias"):
        module.apply(params, x)


def test_weights_may_be_boxed_as_flax_boxes_them():
    module, x = MLP((4,)), jnp.ones((2, 3))
    params = module.init(jax.random.key(0), x)
    boxed = jax.tree.map(lambda w: nn.Partitioned(w, names=(None,) * w.ndim), params)
    np.testing.assert_array_equal(module.apply(boxed, x), module.apply(params, x))


def test_memory_is_put_back_at_every_pattern_of_starts():
    """A core that sums its inputs, against a Python loop over all 2^6 patterns."""
    x = np.arange(1.0, 7.0, dtype=np.float32)
    patterns = np.array(list(itertools.product([False, True], repeat=6)))

    def step(memory, x):
        return memory + x, memory + x

    inputs = jnp.asarray(np.broadcast_to(x[:, None], (6, 64)))
    outputs, before = unroll(step, jnp.float32(0.0), jnp.full((64,), 100.0), inputs, jnp.asarray(patterns.T))
    for j, starts in enumerate(patterns):
        memory = 100.0
        for t in range(6):
            memory = 0.0 if starts[t] and t > 0 else memory
            assert before[t, j] == memory
            memory += x[t]
            assert outputs[t, j] == memory


def test_where_rows_broadcasts_one_over_many():
    rows = jnp.array([True, False])
    result = where_rows(rows, (np.zeros(3, np.float32), np.int32(7)), (jnp.ones((2, 3)), jnp.array([1, 2])))
    np.testing.assert_array_equal(result[0], [[0, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(result[1], [7, 2])


@pytest.mark.optimized
@pytest.mark.parametrize(("size", "strides"), [(10, (1, 1)), (33, (2, 1))])
def test_patches_times_a_matrix_are_a_convolution(size, strides):
    network = Conv(channels=(4, 3), hidden_sizes=(), activation="relu")
    x = jax.random.normal(jax.random.key(0), (2, 5, size, size, 2))
    params = network.init(jax.random.key(1), x)
    expected = x.reshape(-1, *x.shape[2:])
    for layer, stride in enumerate(strides):
        weights = params["params"][f"Dense_{layer}"]
        kernel = weights["kernel"].reshape(3, 3, expected.shape[-1], -1)
        numbers = ("NHWC", "HWIO", "NHWC")
        expected = jax.lax.conv_general_dilated(expected, kernel, (stride, stride), "VALID", dimension_numbers=numbers)
        expected = jax.nn.relu(expected + weights["bias"][None, None, None])
    np.testing.assert_allclose(network.apply(params, x), expected.reshape(2, 5, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "grad", "expected"), [
    (-1.5, 1.0, 0.0),  # descent would lead farther out
    (-1.5, -1.0, -1.0),  # and here back
    (2.5, 1.0, 1.0),
    (2.5, -1.0, 0.0),
    (0.5, 1.0, 1.0),
    (0.5, -1.0, -1.0),
    (-1.0, 1.0, 1.0),
])  # fmt: skip
def test_a_clipped_parameter_can_come_back(x, grad, expected):
    def loss(x):
        return grad * critics.clip_parameter(x, -1.0, 2.0)

    assert float(jax.grad(loss)(jnp.float32(x))) == expected
    assert float(jax.jit(jax.vmap(jax.grad(loss)))(jnp.float32([x]))[0]) == expected
    assert float(critics.clip_parameter(jnp.float32(x), -1.0, 2.0)) == np.clip(x, -1, 2)

"""rlkit.networks: features of every space, encoders, recurrence along time."""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import ScopeParamNotFoundError, ScopeParamShapeError
from small_networks import small_network

from rlkit.networks.cores.recurrent import unroll, where_rows
from rlkit.networks.encoders.conv import Conv, conv_layers
from rlkit.networks.encoders.mlp import MLP
from rlkit.networks.features import action_mask, by_path, image, image_shape, leaves, replace, to_normalize, vector
from rlkit.networks.heads import critics
from rlkit.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

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
    x = jnp.concatenate([vector(leaf) for leaf in leaves(OBS_SPACE, obs)])
    expected = [*[0, 0, 1, 0], *[0.5, -0.5], *[0, 1, 1, 0, 0], *[0, 1, 0.2, 0]]
    np.testing.assert_allclose(x, np.asarray(expected, np.float32), atol=1e-6)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), obs)
    joined = jnp.concatenate([vector(leaf) for leaf in leaves(OBS_SPACE, batch)], axis=-1)
    np.testing.assert_array_equal(joined, np.stack([x] * 5))
    np.testing.assert_array_equal(action_mask(obs), [True, False, True])
    assert action_mask(jnp.zeros(3)) is None


def test_boxes_are_normalized_and_no_discrete_leaf():
    obs = OBS_SPACE.sample(jax.random.key(0))
    paths = to_normalize(OBS_SPACE)
    assert paths == ["['pair'][0]", "['pixels']"]
    assert to_normalize(OBS_SPACE.spaces["pixels"]) == [""]
    replaced = replace(obs, {path: by_path(obs)[path] + 1 for path in paths})
    np.testing.assert_array_equal(replaced["pair"][0], obs["pair"][0] + 1)
    np.testing.assert_array_equal(replaced["pixels"], obs["pixels"] + 1)
    jax.tree.map(np.testing.assert_array_equal, replaced | {"pair": 0, "pixels": 0}, obs | {"pair": 0, "pixels": 0})


def test_a_mask_of_floats_is_not_normalized():
    assert to_normalize(Dict({"action_mask": Box(0, 1, (2,)), "x": Box(-1, 1, (1,))})) == ["['x']"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int32, np.bool_])
def test_flags_of_any_dtype_are_those_of_float32(dtype):
    flags = np.eye(8, dtype=np.float32)
    (leaf,) = leaves(Box(0, 1, (8,), dtype), jnp.asarray(flags.astype(dtype)))
    np.testing.assert_array_equal(vector(leaf), flags)


def test_bytes_are_scaled_by_the_bounds_of_their_space():
    low, high = np.uint8([0, 0, 10, 7]), np.uint8([255, 1, 20, 7])
    (leaf,) = leaves(Box(low, high, dtype=np.uint8), jnp.asarray(np.uint8([[51, 1, 15, 7]])))
    np.testing.assert_array_equal(vector(leaf), np.float32([[0.2, 1.0, 0.5, 0.0]]))
    every = jnp.arange(256, dtype=jnp.uint8)
    (leaf,) = leaves(Box(0, 255, (256,), np.uint8), every)
    np.testing.assert_array_equal(vector(leaf), np.arange(256, dtype=np.float32) / np.float32(255))


def test_pixels_with_bounds_of_their_own_are_scaled_with_any_place_of_the_channels():
    high = np.broadcast_to(np.uint8([1, 10, 255])[:, None, None], (3, 8, 9))
    (leaf,) = leaves(Box(0, high, dtype=np.uint8), jnp.asarray(high)[None])
    np.testing.assert_array_equal(image(leaf), np.ones((1, 8, 9, 3), np.float32))
    last = np.moveaxis(high, 0, -1)
    (leaf,) = leaves(Box(0, last, dtype=np.uint8), jnp.asarray(last))
    np.testing.assert_array_equal(image(leaf), np.ones((8, 9, 3), np.float32))


def test_normalized_bytes_are_not_scaled_again_and_images_always_are():
    (leaf,) = leaves(Box(0, 255, (2,), np.uint8), jnp.float32([-1.0, 2.0]))
    np.testing.assert_array_equal(vector(leaf), [-1.0, 2.0])
    (leaf,) = leaves(Box(0, 255, (2, 1, 1), np.uint8), jnp.full((2, 1, 1), 255.0))
    np.testing.assert_array_equal(vector(leaf), [1.0, 1.0])


def test_images_keep_their_shape():
    space = Box(0, 255, (10, 10, 4), np.uint8)
    assert image_shape(space) == (10, 10, 4)
    assert image_shape(OBS_SPACE) is image_shape(OBS_SPACE.spaces["pixels"]) is None
    (leaf,) = leaves(Dict({"action_mask": Box(0, 1, (2,)), "x": space}), {"x": jnp.zeros((7, 10, 10, 4), jnp.uint8)})
    assert image(leaf).shape == (7, 10, 10, 4)


@pytest.mark.parametrize(("size", "channels", "flat"), [(10, (4,), 8 * 8 * 4), (84, (4, 4), 39 * 39 * 4)])
def test_only_large_images_are_halved(size, channels, flat):
    encoder = Conv(conv_layers(channels, (3,), None, "valid", (size, size, 1)), hidden_sizes=(16,))
    params = jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((size, size, 1)))["params"]
    assert params["MLP_0"]["Dense_0"]["kernel"].shape == (flat, 16)


def test_encoders_take_any_leading_axes():
    encoder = MLP((8, 8), layer_norm=True)
    x, apply = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32), jax.jit(encoder.apply)
    params = jax.jit(encoder.init)(jax.random.key(1), x[0, 0])
    np.testing.assert_allclose(np.asarray(apply(params, x))[1, 2], apply(params, x[1, 2]), rtol=1e-5, atol=1e-6)


def test_bfloat16_encoders_keep_float32_weights_and_heads():
    module, _ = small_network(compute_dtype="bfloat16")
    params = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros(3))
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    outputs = jax.eval_shape(module.apply, params, jnp.zeros((5, 3)))
    assert {x.dtype for x in outputs} == {jnp.dtype(jnp.float32)}
    assert "bf16" in jax.jit(module.apply).lower(params, jnp.zeros((5, 3))).as_text()


def test_weights_of_another_shape_and_missing_ones_are_named():
    module, x = MLP((4,)), jnp.ones((2, 3))
    params = module.init(jax.random.key(0), x)
    with pytest.raises(ScopeParamShapeError):
        module.apply(params, jnp.ones((2, 5)))
    del params["params"]["Dense_0"]["bias"]
    with pytest.raises(ScopeParamNotFoundError):
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
@pytest.mark.parametrize(("size", "strides"), [pytest.param(10, (1, 1), marks=pytest.mark.slow), (33, (2, 1))])
def test_an_encoder_is_convolutions_with_biases(size, strides):
    network = Conv(conv_layers((4, 3), (3,), None, "valid", (size, size, 2)), hidden_sizes=(), activation="relu")
    x = np.random.default_rng(0).normal(size=(2, 5, size, size, 2)).astype(np.float32)
    params = jax.jit(network.init)(jax.random.key(1), x)
    params = jax.tree.map(lambda w: np.asarray(w) + np.float32(0.1 * (w.ndim == 1)), params)  # biases start at 0

    @jax.jit
    def expected(params):
        out = x.reshape(-1, *x.shape[2:])
        for layer, stride in enumerate(strides):
            weights, numbers = params["params"][f"Convolution_{layer}"], ("NHWC", "HWIO", "NHWC")
            out = jax.lax.conv_general_dilated(
                out, weights["kernel"], (stride,) * 2, "VALID", dimension_numbers=numbers
            )
            out = jax.nn.relu(out + weights["bias"][None, None, None])
        return out.reshape(2, 5, -1)

    np.testing.assert_allclose(jax.jit(network.apply)(params, x), expected(params), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "grad", "expected"), [
    (-1.5, 1.0, 0.0),  # descent would lead farther out
    (-1.5, -1.0, -1.0),  # and here back
    (2.5, 1.0, 1.0),
    (2.5, -1.0, 0.0),
    (0.5, 1.0, 1.0),
    (-1.0, 1.0, 1.0),
])  # fmt: skip
def test_a_clipped_parameter_can_come_back(x, grad, expected):
    def loss(x):
        return grad * critics.clip_parameter(x, -1.0, 2.0)

    assert float(jax.grad(loss)(jnp.float32(x))) == expected
    assert float(jax.jit(jax.vmap(jax.grad(loss)))(jnp.float32([x]))[0]) == expected
    assert float(critics.clip_parameter(jnp.float32(x), -1.0, 2.0)) == np.clip(x, -1, 2)

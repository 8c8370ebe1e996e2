"""Encoders of images: the residual network of IMPALA, and convolutions of any kernel, stride, padding and norm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mistakes import mistake

from rlkit.agents import dqn
from rlkit.networks.encoders import registry
from rlkit.networks.encoders.conv import Conv, ConvLayer, conv_layers, smallest_side
from rlkit.networks.encoders.impala import Impala
from rlkit.runs.config.parse import parse
from rlkit.spaces import Box, Dict, Discrete


def convolved(x, weights):
    """The convolution with padding "same" and its bias, by loops: x [H, W, C]."""
    kernel = np.asarray(weights["kernel"])
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    patches = [[padded[i : i + 3, j : j + 3] for j in range(x.shape[1])] for i in range(x.shape[0])]
    return np.einsum("ijhwc,hwcf->ijf", np.array(patches), kernel) + np.asarray(weights["bias"])


def pooled(x):
    """Max pooling over 3 x 3 pixels, stride 2 and padding "same"."""
    counts = [-(-size // 2) for size in x.shape[:2]]
    before = [max((n - 1) * 2 + 3 - size, 0) // 2 for n, size in zip(counts, x.shape[:2], strict=True)]
    padded = np.pad(x, ((before[0], 3), (before[1], 3), (0, 0)), constant_values=-np.inf)
    rows = [
        [padded[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(counts[1])] for i in range(counts[0])
    ]
    return np.array(rows)


def test_impala_against_loops():
    """Espeholt et al. 2018, figure 3: with weights of our own for the biases, which start at 0."""
    module, x = Impala((5,), channels=(4, 3)), np.random.default_rng(0).normal(size=(2, 3, 9, 8, 2)).astype(np.float32)
    params = jax.jit(module.init)(jax.random.key(1), x)
    params = jax.tree.map(lambda w: np.asarray(w) + np.float32(0.1 * (w.ndim == 1)), params)
    layers, dense = params["params"], params["params"]["MLP_0"]["Dense_0"]

    def one(x):
        for block in range(2):
            x = pooled(convolved(x, layers[f"Convolution_{5 * block}"]))
            for first in (5 * block + 1, 5 * block + 3):
                change = convolved(np.maximum(x, 0), layers[f"Convolution_{first}"])
                x = x + convolved(np.maximum(change, 0), layers[f"Convolution_{first + 1}"])
        return np.maximum(np.maximum(x, 0).ravel() @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"]), 0)

    np.testing.assert_allclose(np.asarray(jax.jit(module.apply)(params, x))[1, 2], one(x[1, 2]), rtol=1e-4, atol=1e-4)


def test_impala_has_three_blocks():
    params = jax.eval_shape(Impala().init, jax.random.key(0), jnp.zeros((64, 64, 3)))["params"]
    filters = [params[f"Convolution_{i}"]["kernel"].shape for i in range(15)]
    assert [shape[3] for shape in filters] == [16] * 5 + [32] * 10
    assert {shape[:2] for shape in filters} == {(3, 3)}
    assert params["MLP_0"]["Dense_0"]["kernel"].shape == (8 * 8 * 32, 256)


@pytest.mark.parametrize(
    ("kernels", "strides", "padding", "result"),
    [
        ((3,), None, "valid", (18, 19)),  # strides 2 and 1
        ((5, 4), (2,), "valid", (8, 9)),
        ((4,), (3, 2), "same", (7, 8)),
    ],
)
def test_kernels_strides_and_padding(kernels, strides, padding, result):
    shape = (41, 43, 2)
    layers = conv_layers((4, 3), kernels, strides, padding, shape)
    output, params = jax.eval_shape(Conv(layers, ()).init_with_output, jax.random.key(0), jnp.zeros(shape))
    assert output.shape == (result[0] * result[1] * 3,)
    assert smallest_side(shape, layers) == min(result)
    sizes = [params["params"][f"Convolution_{i}"]["kernel"].shape[:2] for i in range(2)]
    assert sizes == [(kernels[0], kernels[0]), (kernels[-1], kernels[-1])]


def test_convolutions_are_normalized_over_pixels_and_channels():
    module, x = (
        Conv((ConvLayer(4, 3, 1),), (), "tanh", norm="layer"),
        np.random.default_rng(0).normal(size=(3, 9, 9, 2)).astype(np.float32),
    )
    params = jax.jit(module.init)(jax.random.key(1), x)
    before = np.arctanh(np.clip(np.asarray(jax.jit(module.apply)(params, 5 * x + 3), np.float64), -1 + 1e-6, 1 - 1e-6))
    np.testing.assert_allclose(before.mean(1), 0, atol=1e-3)
    np.testing.assert_allclose(before.std(1), 1, atol=1e-3)
    assert np.abs(before.reshape(3, 7 * 7, 4).mean(-1)).max() > 0.5  # not pixel by pixel
    norm = jax.tree.map(jnp.shape, params["params"]["LayerNorm_0"])
    assert norm == {"scale": (4,), "bias": (4,)}


def test_minatar_is_one_convolution():
    """The same as "conv" by default."""
    assert registry.MINATAR == (ConvLayer(16, 3, 1),) == conv_layers((16,), (3,), None, "valid", (10, 10, 4))


def test_one_number_is_a_list_of_one():
    assert dqn.Config(kernels=5, strides=2) == dqn.Config(kernels=(5,), strides=(2,))
    run = {"agent": "dqn", "env": "CartPole-v1", "num_envs": 4, "num_steps": 8, "total_steps": 64}
    agent = parse({**run, "kernels": 5, "strides": "2,1"}).agent
    assert (agent.kernels, agent.strides) == ((5,), (2, 1))
    assert parse(parse({**run, "strides": 2}).flat()).agent.strides == (2,)


@pytest.mark.parametrize(
    ("settings", "side", "words"),
    [
        ({"channels": (4, 4, 4), "strides": (2, 1)}, 40, ["strides=(2, 1) must", "try (2, 1, 1)"]),
        ({"kernels": ()}, 10, ["kernels=() must", "try (3,)"]),
        ({"channels": (4,) * 9}, 10, ["images of (10, 10, 3)", "use at most 4 layers, or padding='same'"]),
        ({"kernels": 12}, 10, ["kernels=(12,)", "use smaller kernels, or padding='same'"]),
        ({"encoder": "minatar"}, 2, ["encoder='minatar'", "use 'conv'"]),
        ({"kernels": (3, -1)}, 10, ["kernels.1=-1 must be at least 1"]),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(settings, side, words):
    with mistake(*words):
        dqn.make(dqn.Config(**settings), Box(0, 255, (side, side, 3), np.uint8), Discrete(2))
    fitting = dqn.Config(encoder="conv", channels=(4,) * 9, padding="same")
    dqn.make(fitting, Box(0, 255, (side, side, 3), np.uint8), Discrete(2))


@pytest.mark.parametrize(
    ("settings", "side", "words"),
    [
        ({"channels": (32,)}, 84, ["channels=(32,) has no effect", "'nature'"]),
        ({"encoder": "impala", "padding": "same"}, 10, ["padding='same' has no effect", "use encoder='conv'"]),
        ({"encoder": "mlp", "norm": "layer"}, 10, ["norm='layer' has no effect", "flattened"]),
    ],
)
def test_settings_of_conv_without_conv_are_one_line(settings, side, words):
    image = Box(0, 255, (side, side, 3), np.uint8)
    with mistake(*words):
        dqn.make(dqn.Config(**settings), image, Discrete(2))
    dqn.make(dqn.Config(**settings | {"encoders": {"far": "conv"}}), Dict({"near": image, "far": image}), Discrete(2))


def test_settings_of_conv_may_be_shared_with_environments_without_images():
    dqn.make(dqn.Config(channels=(32,)), Box(-1, 1, (3,)), Discrete(2))

"""The encoder resnet against loops, its statistics, and the keys of a config that it reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents import dqn
from rlkit.networks.encoders.resnet import ResNet
from rlkit.spaces import Box, Discrete
from rlkit.types import ConfigError

RNG = np.random.default_rng(0)


def convolved(x, weights):
    """The convolution with padding "same" and its bias, by loops: x [B, H, W, C]."""
    kernel = np.asarray(weights["kernel"])
    side = kernel.shape[0] // 2
    padded = np.pad(x, ((0, 0), (side, side), (side, side), (0, 0)))
    result = np.zeros((*x.shape[:3], kernel.shape[3]))
    for i in range(kernel.shape[0]):
        for j in range(kernel.shape[1]):
            result += padded[:, i : i + x.shape[1], j : j + x.shape[2]] @ kernel[i, j]
    return result + np.asarray(weights["bias"])


@pytest.mark.parametrize("train", [False, True])
def test_resnet_against_loops(train):
    module, x = ResNet((5,), channels=(4, 3)), RNG.normal(size=(2, 3, 4, 5, 2)).astype(np.float32)
    variables = jax.jit(module.init)(jax.random.key(1), x)
    variables = jax.tree.map(lambda w: np.asarray(w) + RNG.uniform(0.1, 1, w.shape).astype(np.float32), variables)
    layers, moments, stats = variables["params"], variables["batch_stats"], {}

    def normal(x, name):
        mean, var = moments[name]["mean"], moments[name]["var"]
        if train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            stats[name] = {
                "mean": 0.9 * moments[name]["mean"] + 0.1 * mean,
                "var": 0.9 * moments[name]["var"] + 0.1 * var,
            }
        return np.maximum((x - mean) / np.sqrt(var + 1e-5) * layers[name]["scale"] + layers[name]["bias"], 0)

    y = convolved(x.reshape(6, 4, 5, 2), layers["Convolution_0"])
    change = convolved(normal(y, "BatchNorm_0"), layers["Convolution_1"])
    y = y + convolved(normal(change, "BatchNorm_1"), layers["Convolution_2"])
    change = convolved(normal(y, "BatchNorm_2"), layers["Convolution_3"])
    change = convolved(normal(change, "BatchNorm_3"), layers["Convolution_4"])
    y = normal(convolved(y, layers["Convolution_5"]) + change, "BatchNorm_4").reshape(6, -1)
    dense = layers["MLP_0"]["Dense_0"]
    expected = np.maximum(y @ dense["kernel"] + dense["bias"], 0).reshape(2, 3, 5)
    found = jax.jit(lambda v: module.apply(v, x, train=train, mutable=["batch_stats"] if train else False))(variables)
    if train:
        found, changed = found
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), changed["batch_stats"], stats)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_keys_of_a_config():
    space = Box(0, 1, (6, 7, 2))
    network = dqn.make(dqn.Config(encoder="resnet", channels=(4, 5)), space, Discrete(3)).static.network
    params, stats = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((6, 7, 2)))
    last = [x.shape[-1] for x in jax.tree.leaves(params) if x.ndim == 4]
    assert sorted(last) == [4, 4, 4, 5, 5, 5]
    assert len(jax.tree.leaves(stats)) == 10
    with pytest.raises(ConfigError, match="kernels"):
        dqn.make(dqn.Config(encoder="resnet", kernels=(5,)), space, Discrete(3))

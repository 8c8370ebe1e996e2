"""rlkit.networks.as_network: modules of flax, NNX and equinox as one record, with statistics and noise."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rlkit.networks import as_network

OBS = jnp.zeros(4)
KEY = jax.random.key(0)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(8)(x))
        return nn.Dropout(0.5, deterministic=not train)(x)


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.dense, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.dense(x)))


class Equinox(eqx.Module):
    dense: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.dense = eqx.nn.Linear(4, 8, key=key)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="ema", momentum=0.9)
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.dense(x), state)
        return self.dropout(x, key=key), state


@pytest.fixture(params=[Linen(), NNX, Equinox], ids=["linen", "nnx", "equinox"])
def network(request):
    return as_network(request.param, OBS)


def batch():
    return 3 + np.random.default_rng(1).normal(size=(5, 6, 4)).astype(np.float32)


def started(network):
    return jax.jit(network.init)(KEY, OBS)


def test_every_key_has_weights_of_its_own(network):
    params, stats = jax.jit(jax.vmap(lambda key: network.init(key, OBS)))(jax.random.split(KEY, 2))
    kernel = next(x for x in jax.tree.leaves(params) if x.ndim == 3)
    assert np.abs(kernel[0] - kernel[1]).max() > 0.1
    assert jax.tree.leaves(stats)


def test_acting_reads_statistics_and_leaves_them(network):
    params, stats = started(network)
    outputs, after = jax.jit(network.apply)(params, stats, batch())
    assert outputs.shape == (5, 6, 8)
    jax.tree.map(np.testing.assert_array_equal, after, stats)
    one, _ = jax.jit(network.apply)(params, stats, batch()[2, 3])
    np.testing.assert_allclose(one, outputs[2, 3], rtol=1e-4, atol=1e-5)


def test_training_writes_the_moments_of_the_whole_batch_and_draws_noise(network):
    params, stats = started(network)
    train = jax.jit(lambda key: network.apply(params, stats, batch(), train=True, key=key))
    outputs, after = train(jax.random.key(2))
    other, _ = train(jax.random.key(3))
    assert jax.tree.structure(after) == jax.tree.structure(stats)
    moved = jax.tree.map(lambda x, y: np.abs(np.subtract(x, y, dtype=np.float32)).max(), stats, after)
    assert max(jax.tree.leaves(moved)) > 0.05
    assert 0.3 < np.mean(outputs == 0) < 0.7
    assert np.any((outputs == 0) != (other == 0))


def test_dropout_hides_in_acting_what_it_shows_in_training(network):
    params, stats = started(network)
    acting, _ = network.apply(params, stats, batch(), key=jax.random.key(2))
    assert np.mean(acting == 0) < 0.01


def test_only_parameters_have_a_gradient(network):
    params, stats = started(network)
    loss = lambda p: jnp.sum(network.apply(p, stats, batch(), train=True, key=KEY)[0] ** 2)  # noqa: E731
    gradient = jax.jit(jax.grad(loss))(params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert any(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient))


def test_a_module_that_holds_its_weights_already_is_refused():
    for made in (NNX(nnx.Rngs(0)), eqx.nn.MLP(4, 2, 8, 1, key=KEY)):
        with pytest.raises(TypeError, match="is no network; give"):
            as_network(made, OBS)

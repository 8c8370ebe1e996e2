"""Batch renormalization of features whose mean is far from 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.networks import BatchRenorm


def normalized(x, axis_name=None):
    """The output [B, D] in training, the running moments, and the gradient of a weighted sum."""
    module = BatchRenorm(axis_name=axis_name)
    variables = BatchRenorm().init(jax.random.key(0), x[:2])

    def total(x):
        out, changed = module.apply(variables, x, True, mutable=["batch_stats"])
        return jnp.sum(out * jnp.arange(float(out.size)).reshape(out.shape)), (out, changed["batch_stats"])

    gradient, (out, moments) = jax.grad(total, has_aux=True)(x)
    return out, moments, gradient


@pytest.mark.parametrize("mean", [0, 20_000])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_mean_far_from_0_costs_no_precision(mean, devices):
    x = np.random.default_rng(0).normal(mean, 1, (256, 3)).astype(np.float32)
    parts = x.reshape(devices, -1, 3)
    if devices == 1:
        out, moments, gradient = jax.jit(normalized)(x)
    else:
        run = jax.jit(jax.vmap(lambda part: normalized(part, "d"), axis_name="d"))
        out, moments, gradient = run(parts)
        np.testing.assert_array_equal(moments["var"][0], moments["var"][1])
        out, moments = np.reshape(out, x.shape), jax.tree.map(lambda m: np.asarray(m)[0], moments)
    wide = np.float64(x)
    np.testing.assert_allclose(out, (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-3), atol=2e-3)
    np.testing.assert_allclose(np.std(out, 0), 0.9995, atol=1e-3)
    np.testing.assert_allclose(moments["mean"], 0.01 * wide.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments["var"], 0.99 + 0.01 * wide.var(0), rtol=1e-5)
    assert np.abs(np.sum(gradient)) < 1e-3 * np.abs(gradient).sum()  # a shift of all items changes nothing

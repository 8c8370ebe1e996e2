"""Losses of distributions of returns: numbers by hand and a slow NumPy loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from loss_arrays import normal

from rlkit.ops import distributional


def slow_projection(probs: np.ndarray, source: np.ndarray, atoms: np.ndarray) -> np.ndarray:
    out = np.zeros((len(probs), len(atoms)))
    for b, i in np.ndindex(probs.shape):
        z = np.clip(source[b, i], atoms[0], atoms[-1])
        j = min(np.searchsorted(atoms, z, side="right") - 1, len(atoms) - 2)
        share = (z - atoms[j]) / (atoms[j + 1] - atoms[j])
        out[b, j] += (1 - share) * probs[b, i]
        out[b, j + 1] += share * probs[b, i]
    return out


def test_projection_against_a_slow_loop_on_uneven_atoms():
    atoms = np.array([-3.0, -1.0, -0.5, 0.0, 2.0, 5.0])
    probs = np.random.default_rng(0).dirichlet(np.ones(9), 16)
    source = 4 * normal(16, 9)
    source[0, :6] = atoms  # exactly on the atoms
    with jax.enable_x64(True):
        ours = np.asarray(distributional.categorical_projection(probs, source, atoms))
    np.testing.assert_allclose(ours, slow_projection(probs, source, atoms), atol=1e-14)
    np.testing.assert_allclose(ours.sum(-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(ours @ atoms, np.sum(probs * np.clip(source, -3, 5), -1), rtol=1e-10)


def test_projection_by_hand():
    out = distributional.categorical_projection(
        jnp.float32([[0.5, 0.5]]), jnp.float32([[0.25, 9.0]]), jnp.float32([0, 1, 2])
    )
    np.testing.assert_allclose(out, [[0.375, 0.125, 0.5]])


def test_the_categorical_loss_is_least_at_its_target():
    """At the target's own logits the loss is the target's entropy and the gradient is 0."""
    atoms = jnp.linspace(-2.0, 2.0, 5)
    next_logits = jnp.float32(normal(4, 3, 5))
    action, one = jnp.array([0, 1, 2, 0]), jnp.ones(4)
    selector = jax.nn.one_hot(action, 3)
    loss = partial(
        distributional.categorical_double_q_learning,
        action=action,
        reward=0 * one,
        discount=one,
        next_logits=next_logits,
        next_q_selector=selector,
        atoms=atoms,
    )
    log_p = jax.nn.log_softmax(next_logits[jnp.arange(4), action])
    np.testing.assert_allclose(loss(next_logits), -jnp.sum(jnp.exp(log_p) * log_p, -1), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: loss(x).sum())(next_logits), np.zeros((4, 3, 5)), atol=1e-6)


def test_quantile_loss_by_hand():
    """Value 0 at quantile 0.25, targets 2 and -1: (0.25 * 2 + 0.75 * 1) / 2 for κ = 0; for κ = 1 Huber's 1.5, 0.5."""
    one = jnp.ones(1)
    args = (jnp.zeros((1, 1, 1)), jnp.float32([0.25]), jnp.array([0]), 0 * one, one, jnp.float32([[[2.0], [-1.0]]]))
    loss = partial(distributional.quantile_q_learning, *args, args[-1])
    np.testing.assert_allclose(loss(kappa=0.0), [0.625], rtol=1e-6)
    np.testing.assert_allclose(loss(kappa=1.0), [(0.25 * 1.5 + 0.75 * 0.5) / 2], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda k: loss(kappa=k))(jnp.float32([0, 1]))[:, 0], [0.625, 0.375], rtol=1e-6)


def test_quantile_regression_finds_the_quantiles():
    """The minimum for many targets is at their quantiles: the gradient is 0 in the middle of the gaps."""
    targets = jnp.arange(100.0)[None, :, None]
    tau = jnp.float32([0.105, 0.505, 0.905])
    at = jnp.float32([10, 50, 90])[None, :, None]
    loss = lambda q: distributional.quantile_q_learning(  # noqa: E731
        q, tau, jnp.array([0]), jnp.zeros(1), jnp.ones(1), targets, targets, kappa=0.0
    ).sum()
    below, above = jax.grad(loss)(at - 0.5), jax.grad(loss)(at + 0.5)
    assert float(below.max()) < 0 < float(above.min())

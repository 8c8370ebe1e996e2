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
    p = np.exp(np.asarray(next_logits)[np.arange(4), action])
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(jax.jit(loss)(next_logits), -np.sum(p * np.log(p), -1), rtol=1e-5)
    gradient = jax.jit(jax.grad(lambda x: loss(x).sum()))(next_logits)
    np.testing.assert_allclose(gradient, np.zeros((4, 3, 5)), atol=1e-6)


def test_quantile_loss_by_hand():
    """Value 0 at quantile 0.25, targets 2 and -1: (0.25 * 2 + 0.75 * 1) / 2 for κ = 0; for κ = 1 Huber's 1.5, 0.5."""
    one = jnp.ones(1)
    args = (jnp.zeros((1, 1, 1)), jnp.float32([0.25]), jnp.array([0]), 0 * one, one, jnp.float32([[[2.0], [-1.0]]]))
    loss = partial(distributional.quantile_q_learning, *args, args[-1])
    for kappa, expected in ((0.0, 0.625), (1.0, (0.25 * 1.5 + 0.75 * 0.5) / 2)):
        np.testing.assert_allclose(jax.jit(partial(loss, kappa=kappa))(), [expected], rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda k: loss(kappa=k)))(jnp.float32([0, 1]))[:, 0], [0.625, 0.375], rtol=1e-6
    )


def test_quantile_regression_finds_the_quantiles():
    """The minimum for many targets is at their quantiles: the gradient is 0 in the middle of the gaps."""
    targets = jnp.arange(100.0)[None, :, None]
    tau = jnp.float32([0.105, 0.505, 0.905])
    at = jnp.float32([10, 50, 90])[None, :, None]
    loss = lambda q: distributional.quantile_q_learning(  # noqa: E731
        q, tau, jnp.array([0]), jnp.zeros(1), jnp.ones(1), targets, targets, kappa=0.0
    ).sum()
    gradient = jax.jit(jax.grad(loss))
    below, above = gradient(at - 0.5), gradient(at + 0.5)
    assert float(below.max()) < 0 < float(above.min())


ACTION, DISCOUNT = np.array([0, 2, 1, 2]), np.float32([0.9, 0.0, 0.5, 1.0])


def test_the_categorical_target_against_a_slow_loop():
    """The selector has another best action than the means; what is not read at discount 0 is NaN."""
    atoms, reward, logits = np.linspace(-2.0, 2.0, 5), normal(4, seed=1), normal(4, 3, 5)
    selector = normal(4, 3, seed=2)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    best = selector.argmax(-1)
    assert (best != (probs @ atoms).argmax(-1)).any()
    expected = slow_projection(probs[np.arange(4), best], reward[:, None] + DISCOUNT[:, None] * atoms, atoms)
    logits[1] = np.nan
    ours = distributional.categorical_target(*map(jnp.float32, (reward, DISCOUNT, logits, selector, atoms)))
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_the_quantile_loss_against_a_slow_loop():
    """Different numbers of quantiles, target quantiles and selecting quantiles; NaN where discount is 0."""
    quantiles, following, selector = normal(4, 3, 3), normal(4, 5, 3, seed=1), normal(4, 2, 3, seed=2)
    selector[:, :, 0] += [-9.0, 6.0]  # the greatest entry, but a low mean
    reward, tau, kappa = normal(4, seed=3), np.random.default_rng(4).uniform(size=(4, 3)), 0.7
    expected = np.zeros(4)
    for b, i, j in np.ndindex(4, 3, 5):
        target = reward[b] + DISCOUNT[b] * following[b, j, selector[b].mean(0).argmax()]
        error = target - quantiles[b, i, ACTION[b]]
        size = abs(error)
        huber = 0.5 * size**2 if size < kappa else kappa * (size - 0.5 * kappa)
        expected[b] += abs(tau[b, i] - (error < 0)) * huber / 5
    following[1] = np.nan
    quantiles, tau, *rest = map(jnp.float32, (quantiles, tau, reward, DISCOUNT, following, selector))
    ours = distributional.quantile_q_learning(quantiles, tau, ACTION, *rest, kappa=kappa)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_no_gradient_flows_into_targets():
    atoms, one = jnp.linspace(-2.0, 2.0, 5), jnp.ones(4)
    logits, quantiles = jnp.float32(normal(4, 3, 5)), jnp.float32(normal(4, 5, 3))
    row = jax.nn.softmax(logits[:, 0])

    def categorical(logits):
        return distributional.categorical_target(one, one, logits, logits.max(-1), atoms)[:, 3].sum()

    def cross_entropy(target):
        return distributional.categorical_cross_entropy(logits, ACTION, target).sum()

    def quantile(following):
        tau = jnp.linspace(0.1, 0.9, 5)
        return distributional.quantile_q_learning(quantiles, tau, ACTION, one, one, following, following).sum()

    for loss, target in ((categorical, logits), (cross_entropy, row), (quantile, quantiles + 1)):
        assert not np.asarray(jax.jit(jax.grad(loss))(target)).any()

"""Distributions at their extremes: masked actions, and bounds at which tanh saturates."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_distributions import KEY, NVEC, finite, normal

from rlkit.ops.distributions import Categorical, DiagNormal, MultiDiscrete, TanhNormal

# Masks


@pytest.mark.parametrize("legal", [[0], [1, 3]])
def test_masked_actions_have_probability_zero_and_finite_everything(legal):
    mask = jnp.isin(jnp.arange(4), jnp.array(legal))
    logits = jnp.float32([5.0, -3.0, 80.0, 0.5])
    d, alone = Categorical.masked(logits, mask), Categorical(logits[jnp.array(legal)])
    np.testing.assert_array_equal(d.probs[~mask], 0.0)
    np.testing.assert_allclose(d.probs[mask], alone.probs, rtol=1e-6)
    np.testing.assert_allclose(d.entropy(), alone.entropy(), rtol=1e-5, atol=1e-7)
    draws = jax.jit(jax.vmap(d.sample))(jax.random.split(KEY, 5_000))
    assert set(np.unique(draws)) <= set(legal)
    assert int(d.mode()) in legal

    def numbers(logits):
        masked = Categorical.masked(logits, mask)
        other = Categorical.masked(-logits, mask)
        action = jnp.asarray(legal[0])
        ratio = jnp.exp(masked.log_prob(action) - other.log_prob(action))
        return masked.entropy() + masked.kl(other) + masked.kl(Categorical(-logits)) + ratio

    value, grad = jax.jit(jax.value_and_grad(numbers))(logits)
    assert finite(value, grad)


def test_logits_of_masked_actions_may_be_anything():
    mask = jnp.array([True, False, True, False])
    logits = jnp.float32([1.0, jnp.nan, 2.0, jnp.inf])
    value, grad = jax.value_and_grad(lambda x: Categorical.masked(x, mask).entropy())(logits)
    assert finite(value, grad)
    np.testing.assert_array_equal(grad[~mask], 0.0)
    lowest = Categorical.masked(jnp.float32([-1e30, 5.0]), jnp.array([True, False]))
    np.testing.assert_array_equal(lowest.probs, [1.0, 0.0])


def test_masked_multi_discrete():
    mask = jnp.array([True, False, True, True, False, False, False, True, False])
    d = MultiDiscrete.masked(jnp.float32(normal(9)), NVEC, mask)
    draws = np.asarray(jax.vmap(d.sample)(jax.random.split(KEY, 1_000)))
    assert [set(np.unique(column)) for column in draws.T] == [{0}, {0, 1}, {2}]
    assert finite(jax.value_and_grad(lambda x: MultiDiscrete.masked(x, NVEC, mask).entropy())(d.logits))


# Saturation


@pytest.mark.parametrize("loc", [-20.0, 20.0, 0.0, 3.0])
def test_tanh_normal_matches_float64_at_saturation(loc: float):
    """Value and gradient of the float32 log-probability of a stored u, against float64 and a direct formula."""
    u = np.array([loc - 0.15, loc + 0.02, loc + 0.1])

    def total(loc, scale, u):
        d = TanhNormal(loc, scale, -2.0, 2.0)
        return d.log_prob_pre_tanh(u).sum()

    def value_and_grad(dtype):
        args = (np.full((3, 1), loc, dtype), np.full((3, 1), 0.1, dtype), u[:, None].astype(dtype))
        value, grads = jax.value_and_grad(total, (0, 1, 2))(*args)
        return np.asarray(value), [np.asarray(g) for g in grads]

    with jax.enable_x64(True):
        exact, exact_grads = value_and_grad(np.float64)
    value, grads = value_and_grad(np.float32)
    # The float32 u itself is rounded by up to 1e-6, ten thousandths of the scale's slope: compare at the rounded u.
    with jax.enable_x64(True):
        u = u.astype(np.float32).astype(np.float64)
        exact, exact_grads = value_and_grad(np.float64)
    # log(1 - tanh^2) = -2 log cosh, and log cosh u = |u| - log 2 + log1p(exp(-2 |u|))
    size = np.abs(u)
    log_slope = -2 * (size - math.log(2) + np.log1p(np.exp(-2 * size))) + math.log(2.0)
    direct = np.sum(-0.5 * ((u - loc) / 0.1) ** 2 - math.log(0.1) - 0.5 * math.log(2 * math.pi) - log_slope)
    np.testing.assert_allclose(exact, direct, rtol=1e-7)
    np.testing.assert_allclose(value, exact, rtol=1e-4)
    for ours, theirs in zip(grads, exact_grads, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_tanh_normal_made_inside_a_vmap_with_plain_bounds_leaves_it_whole():
    loc = jnp.float32(normal(4, 2))
    whole = TanhNormal(loc, 0.5, -2.0, jnp.float32([1.0, 3.0]))
    left = jax.vmap(lambda loc: TanhNormal(loc, 0.5, -2.0, jnp.float32([1.0, 3.0])))(loc)
    assert [leaf.shape for leaf in jax.tree.leaves(left)] == [(4, 2)] * 4
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(left))
    np.testing.assert_allclose(left.entropy(), whole.entropy(), rtol=1e-6)
    axes = TanhNormal(1, 1, 1, 1)  # a tree of axes holds no parameters
    np.testing.assert_allclose(jax.vmap(lambda d: d.loc, in_axes=(axes,))(whole), loc.T)
    with pytest.raises(ValueError, match=r"^scale has shape \(3, 2\), expected \(2,\)"):
        DiagNormal(jnp.zeros(2), jnp.ones((3, 2)))


@pytest.mark.parametrize(
    ("loc", "scale", "atol"),
    [(20.0, 0.1, 1e-4), (-20.0, 0.1, 1e-4), (0.0, 1e-3, 1e-5), (0.0, 1.0, 1e-3), (1.0, 3.0, 3e-3), (0.0, 10.0, 0.15)],
)
def test_tanh_normal_entropy_against_fine_quadrature(loc: float, scale: float, atol: float):
    z = np.linspace(-12, 12, 200_001)
    u = loc + scale * z
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    log_slope = 2 * (math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    expected = 0.5 * math.log(2 * math.pi * math.e) + math.log(scale) + np.sum(density * log_slope)
    d = TanhNormal(jnp.float32([[loc]]), jnp.float32([[scale]]))
    np.testing.assert_allclose(d.entropy(), [expected], rtol=0, atol=atol)
    assert finite(jax.grad(lambda s: TanhNormal(d.loc, s).entropy().sum())(d.scale))


def test_actions_at_a_bound_keep_value_and_gradient_finite():
    action = jnp.float32([[-1.0], [1.0], [0.99999994]])

    def total(loc, action):
        return TanhNormal(loc, 1.0).log_prob(action).sum()

    assert finite(jax.value_and_grad(total, (0, 1))(jnp.zeros((3, 1)), action))


def test_python_numbers_beside_integers_or_16_bits_keep_their_values():
    normal = DiagNormal(jnp.array([1, 2]), 0.5)
    expected = DiagNormal(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]))
    np.testing.assert_array_equal(normal.log_prob(jnp.array([0.5, 2.0])), expected.log_prob(jnp.array([0.5, 2.0])))
    squashed = TanhNormal(jnp.zeros(1, jnp.bfloat16), 1.0, -0.3, 0.3)
    assert float(squashed.high[0]) == np.float32(0.3)
    assert float(squashed.sample(jax.random.key(0))[0]) < 0.3


def test_rounding_leads_to_no_action_beyond_a_bound():
    low, high = np.sort(np.float32(normal(1000, 2)), axis=1).T
    assert (low + (high - low) > high).any()
    for u in (-50.0, 50.0):
        action = TanhNormal(jnp.zeros(1000), 1.0, low, high).squash(jnp.full(1000, u))
        assert ((action >= low) & (action <= high)).all()

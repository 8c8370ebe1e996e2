"""Losses: numbers by hand, slow NumPy, identities, extremes, jit, vmap and grad."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_arrays import finite, normal

from rlkit.ops import losses

# PPO


@pytest.mark.parametrize(
    ("ratio", "advantage", "kwargs", "expected"),
    [
        (1.0, 2.0, {"clip_eps": 0.2}, -2.0),
        (1.5, 2.0, {"clip_eps": 0.2}, -2.4),  # bound from above
        (0.5, 2.0, {"clip_eps": 0.2}, -1.0),  # not bound from below
        (1.5, -2.0, {"clip_eps": 0.2}, 3.0),  # not bound from above
        (0.5, -2.0, {"clip_eps": 0.2}, 1.6),  # bound from below
        (1.5, 2.0, {"clip_eps": (0.1, 0.4)}, -2.8),
        (0.5, -2.0, {"clip_eps": (0.1, 0.4)}, 1.8),
        (5.0, -2.0, {"clip_eps": 0.2}, 10.0),
        (5.0, -2.0, {"clip_eps": 0.2, "dual_clip": 3.0}, 6.0),  # the loss is at most -dual_clip A
        (5.0, -2.0, {"clip_eps": 0.2, "dual_clip": jnp.inf}, 10.0),
        (5.0, 2.0, {"clip_eps": jnp.inf, "dual_clip": 3.0}, -10.0),
    ],
)
def test_ppo_clip_by_hand(ratio, advantage, kwargs, expected):
    loss = losses.ppo_clip(jnp.log(jnp.float32([ratio])), jnp.zeros(1), jnp.float32([advantage]), **kwargs)
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_ppo_clip_is_the_formula_of_the_papers():
    log_ratio, advantage = normal(512), 3 * normal(512, seed=1)
    ratio = np.exp(log_ratio)
    surrogate = np.minimum(ratio * advantage, np.clip(ratio, 0.9, 1.3) * advantage)
    dual = np.where(advantage < 0, np.maximum(surrogate, 2.0 * advantage), surrogate)
    with jax.enable_x64(True):
        ours = partial(losses.ppo_clip, log_ratio, np.zeros(512), advantage, clip_eps=(0.1, 0.3))
        np.testing.assert_allclose(ours(), -surrogate, rtol=1e-12)
        np.testing.assert_allclose(ours(dual_clip=2.0), -dual, rtol=1e-12)


def test_at_ratio_one_the_gradient_is_the_policy_gradient():
    log_prob, advantage = jnp.float32(normal(16)), jnp.float32(normal(16, seed=1))
    grad = jax.grad(lambda lp: losses.ppo_clip(lp, log_prob, advantage, clip_eps=0.2).sum())(log_prob)
    np.testing.assert_array_equal(grad, -advantage)


@pytest.mark.parametrize(("clip_eps", "dual_clip"), [(0.2, None), (0.2, jnp.inf), (jnp.inf, 3.0)])
def test_ppo_clip_is_finite_at_any_ratio(clip_eps, dual_clip):
    log_ratio = jnp.float32([-200, 200, -200, 200, -88, 88, 0, 0, 200, -200])
    advantage = jnp.float32([1, 1, -1, -1, -1, -1, 0, -1, 0, 0])

    def loss(log_prob, advantage, dual_clip):
        return losses.ppo_clip(log_prob, jnp.zeros(10), advantage, clip_eps=clip_eps, dual_clip=dual_clip)

    argnums = (0, 1) if dual_clip is None else (0, 1, 2)
    grads = jax.jit(jax.grad(lambda *args: loss(*args).sum(), argnums))(log_ratio, advantage, dual_clip)
    assert finite(jax.jit(loss)(log_ratio, advantage, dual_clip), grads)
    # A bad action that has become far more likely has a gradient, but not beyond the dual clip.
    assert (grads[0][3] > 0) == (dual_clip != 3.0)


def test_clip_eps_may_be_traced_and_swept():
    log_ratio, advantage = jnp.float32(normal(8)), jnp.float32(normal(8, seed=1))
    sweep = jnp.float32([0.1, 0.2, jnp.inf])
    loss = jax.jit(jax.vmap(lambda eps: losses.ppo_clip(log_ratio, jnp.zeros(8), advantage, clip_eps=(eps, eps))))
    for eps, row in zip(sweep.tolist(), loss(sweep), strict=True):
        expected = losses.ppo_clip(log_ratio, jnp.zeros(8), advantage, clip_eps=eps)
        np.testing.assert_allclose(row, expected, rtol=1e-6)


# KL


def test_kl_approx_by_hand_and_never_negative():
    np.testing.assert_allclose(
        losses.kl_approx(jnp.log(jnp.float32([2.0, 0.5])), jnp.zeros(2)), [0.306853, 0.193147], rtol=1e-5
    )
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-8, 2, 10_000)  # from below rounding to ratios of e^100
    old = np.float32(rng.normal(size=10_000))
    new = old + np.float32(scale * rng.normal(size=10_000))
    with_gradient = jax.jit(jax.vmap(jax.value_and_grad(losses.kl_approx)))
    kl, grads = with_gradient(new, old)
    assert float(kl.min()) >= 0.0
    assert finite(kl, grads)
    assert finite(*with_gradient(jnp.float32([200, -200]), jnp.zeros(2)))


def test_kl_approx_is_unbiased():
    """Weighted with the old probabilities, k3 sums to the exact KL(old || new)."""
    old, new = (jax.nn.log_softmax(jnp.float32(normal(6, seed=i))) for i in (0, 1))
    exact = jnp.sum(jnp.exp(old) * (old - new))
    np.testing.assert_allclose(jnp.sum(jnp.exp(old) * losses.kl_approx(new, old)), exact, rtol=1e-5)


def test_kl_approx_is_accurate_for_small_ratios():
    log_ratio = jnp.float32([1e-2, 1e-3])
    np.testing.assert_allclose(losses.kl_approx(log_ratio, jnp.zeros(2)), [5.0167e-5, 5.00167e-7], rtol=1e-3)


def test_adaptive_kl_coef_by_hand():
    kl = jnp.float32([0.001, 0.0066, 0.0067, 0.01, 0.0149, 0.0151, 1.0])
    coef = jax.vmap(partial(losses.adaptive_kl_coef, 2.0, target_kl=0.01))(kl)
    np.testing.assert_array_equal(coef, [1, 1, 2, 2, 2, 4, 4])
    bounds = [losses.adaptive_kl_coef(coef, kl, target_kl=0.01) for coef, kl in ((1e-6, 1e-9), (1e6, 1.0))]
    np.testing.assert_allclose(bounds, [1e-6, 1e6], rtol=1e-6)


# Advantages


@pytest.mark.parametrize("values", [[3.0], [0.0], [0.1, 0.1], [1e4] * 7, [0.3e8] * 1000])
def test_equal_advantages_give_zero_and_a_finite_gradient(values):
    advantage = jnp.float32(values)
    out, pullback = jax.vjp(losses.normalize_advantage, advantage)
    np.testing.assert_array_equal(out, np.zeros(len(values)))
    assert finite(pullback(jnp.ones_like(out)))


def test_two_advantages_are_plus_and_minus_one():
    np.testing.assert_allclose(losses.normalize_advantage(jnp.float32([1, 5])), [-1, 1], rtol=1e-6)


def test_normalized_advantages_have_mean_zero_and_deviation_one():
    out = losses.normalize_advantage(jnp.float32(1e4 + normal(64, 3)))
    np.testing.assert_allclose([out.mean(), out.std()], [0, 1], atol=1e-5)
    np.testing.assert_allclose(
        out, losses.normalize_advantage(jnp.float32(1e4 + normal(64, 3)).reshape(-1)).reshape(64, 3)
    )


def test_masked_advantages_do_not_enter():
    advantage = jnp.float32([1, 2, jnp.nan, 6, jnp.inf])
    mask = jnp.array([True, True, False, True, False])
    out, pullback = jax.vjp(lambda a: losses.normalize_advantage(a, mask), advantage)
    alone = losses.normalize_advantage(jnp.float32([1, 2, 6]))
    np.testing.assert_allclose(out, [alone[0], alone[1], 0, alone[2], 0], rtol=1e-6)
    assert finite(pullback(jnp.ones(5)))
    none = losses.normalize_advantage(advantage, jnp.zeros(5, bool))
    np.testing.assert_array_equal(none, np.zeros(5))


# Values


@pytest.mark.parametrize(
    ("value", "old", "target", "eps", "expected"),
    [
        (2.0, 1.0, 3.0, 0.5, 1.125),  # clipped to 1.5: the larger error
        (2.0, 1.0, 1.5, 0.5, 0.125),  # clipped to 1.5: no error, so the unclipped one counts
        (1.2, 1.0, 3.0, 0.5, 1.62),  # inside
        (2.0, 1.0, 3.0, jnp.inf, 0.5),
    ],
)
def test_clipped_value_loss_by_hand(value, old, target, eps, expected):
    loss = losses.clipped_value_loss(*(jnp.float32([x]) for x in (value, old, target)), clip_eps=eps)
    np.testing.assert_allclose(loss, [expected], rtol=1e-6)


def test_an_infinite_value_clip_is_half_the_square_with_its_whole_gradient():
    value, old, target = (jnp.float32(normal(32, seed=i)) for i in range(3))
    loss, pullback = jax.vjp(lambda v: losses.clipped_value_loss(v, old, target, clip_eps=jnp.inf), value)
    np.testing.assert_array_equal(loss, 0.5 * (value - target) ** 2)
    np.testing.assert_allclose(pullback(jnp.ones(32))[0], value - target, rtol=1e-6)


def test_huber_by_hand():
    np.testing.assert_allclose(losses.huber(jnp.float32([0.5, -3.0, 0.0]), 1.0), [0.125, 2.5, 0.0])
    np.testing.assert_allclose(losses.huber(jnp.float32([0.5, -3.0]), 2.0), [0.125, 4.0])
    out, grad = jax.vmap(jax.value_and_grad(lambda e: losses.huber(e, jnp.inf)))(jnp.float32([-3.0, 100.0]))
    np.testing.assert_allclose(out, [4.5, 5000])
    np.testing.assert_allclose(grad, [-3, 100])


def test_td_errors_by_hand():
    q = jnp.float32([[1, 2, 3]])
    args = (q, jnp.array([1]), jnp.float32([10]), jnp.float32([0.5]))
    next_q, selector = jnp.float32([[4, 8, 6]]), jnp.float32([[0, 0, 1]])
    np.testing.assert_allclose(losses.q_learning(*args, next_q), [12])
    np.testing.assert_allclose(losses.double_q_learning(*args, next_q, selector), [11])
    np.testing.assert_allclose(losses.td_error(jnp.ones(1), jnp.ones(1), jnp.float32([0.5]), jnp.float32([4.0])), [2])
    assert bool(jnp.isnan(losses.q_learning(q, jnp.array([3]), *args[2:], next_q)[0]))  # no silent clamping


def test_a_value_under_discount_zero_is_not_read_and_targets_get_no_gradient():
    def loss(value, next_value):
        return jnp.sum(losses.td_error(value, jnp.ones(2), jnp.float32([0.0, 0.9]), next_value))

    value, grads = jax.value_and_grad(loss, (0, 1))(jnp.ones(2), jnp.float32([jnp.nan, 1.0]))
    assert finite(value, grads)
    np.testing.assert_array_equal(grads[0], [-1, -1])
    np.testing.assert_array_equal(grads[1], [0, 0])


def test_signed_hyperbolic_and_its_inverse():
    np.testing.assert_allclose(losses.signed_hyperbolic(jnp.float32([3.0, -8.0, 0.0])), [1.003, -2.008, 0], rtol=1e-6)
    x = jnp.float32(np.concatenate([-np.logspace(-6, 6, 50), np.logspace(-6, 6, 50)]))
    np.testing.assert_allclose(losses.signed_parabolic(losses.signed_hyperbolic(x)), x, rtol=1e-5)
    slope = jax.vmap(jax.grad(losses.signed_hyperbolic))(jnp.zeros(1))
    np.testing.assert_allclose(slope, [0.501], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(losses.signed_parabolic))(jnp.zeros(1)), 1 / slope, rtol=1e-6)

"""Distributions: numbers by hand, sums in float64, frequencies of draws, jit, vmap and grad."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from random_distributions import KEY, NVEC, every_kind, example, normal

from rlkit.ops.distributions import Categorical, DiagNormal, MultiDiscrete, TanhNormal

# By hand


def test_categorical_by_hand():
    d = Categorical(jnp.log(jnp.float32([[0.5, 0.25, 0.25], [1, 1, 2]])))
    np.testing.assert_allclose(d.probs, [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(jnp.exp(d.log_prob(jnp.array([1, 2]))), [0.25, 0.5], rtol=1e-6)
    np.testing.assert_allclose(d.entropy(), [1.5 * math.log(2)] * 2, rtol=1e-6)
    np.testing.assert_array_equal(d.mode(), [0, 2])
    other = Categorical(jnp.zeros((2, 3)))
    np.testing.assert_allclose(d.kl(other), [math.log(3) - 1.5 * math.log(2)] * 2, rtol=1e-5)
    assert bool(jnp.all(jnp.isnan(d.log_prob(jnp.array([3, -4])))))  # no silent clamping


def test_multi_discrete_is_a_product_of_categoricals():
    d, other = example("MultiDiscrete"), example("MultiDiscrete", seed=5)
    numbers = jax.jit(lambda d, other, action: (d.log_prob(action), d.entropy(), d.kl(other), d.mode()))
    action = np.int32([[0, 2, 3], [1, 1, 0], [1, 0, 2]])
    ends = np.cumsum(NVEC)
    parts, others = ([Categorical(x.logits[:, e - n : e]) for n, e in zip(NVEC, ends, strict=True)] for x in (d, other))
    total = partial(np.testing.assert_allclose, rtol=1e-5)
    *sums, mode = numbers(d, other, action)
    of_parts = [numbers(p, q, action[:, i]) for i, (p, q) in enumerate(zip(parts, others, strict=True))]
    for i, found in enumerate(sums):
        total(found, sum(np.asarray(part[i]) for part in of_parts))
    np.testing.assert_array_equal(mode, np.stack([part[-1] for part in of_parts], -1))


def test_diag_normal_by_hand():
    d = DiagNormal(jnp.float32([[0, 1]]), jnp.float32([[1, 2]]))
    log_norm = math.log(2 * math.pi) + math.log(2)
    np.testing.assert_allclose(d.log_prob(jnp.float32([[1, 3]])), [-0.5 - 0.5 - log_norm], rtol=1e-6)
    np.testing.assert_allclose(d.entropy(), [1 + log_norm], rtol=1e-6)
    np.testing.assert_allclose(d.kl(DiagNormal(jnp.zeros((1, 2)), jnp.ones((1, 2)))), [0.5 * (4 + 1 - 1) - math.log(2)])


def test_a_scale_with_fewer_axes_is_the_same_for_every_row():
    loc, x = normal(4, 2).astype(np.float32), normal(4, 2, seed=1).astype(np.float32)
    full = DiagNormal(loc, np.full((4, 2), 0.5, np.float32))
    for scale in (0.5, np.full(2, 0.5, np.float32)):
        np.testing.assert_array_equal(DiagNormal(loc, scale).log_prob(x), full.log_prob(x))
        np.testing.assert_array_equal(DiagNormal(loc, scale).entropy(), full.entropy())


# Identities


def grid_of(name: str, d) -> tuple[np.ndarray, np.ndarray]:
    """All actions of a one-row distribution (discrete), or a fine grid (one dimension), with integration weights."""
    if name == "Categorical":
        return np.arange(9), np.ones(9)
    if name == "MultiDiscrete":
        return np.stack(np.meshgrid(*map(np.arange, NVEC), indexing="ij"), -1).reshape(-1, 3), np.ones(math.prod(NVEC))
    low, high = (float(d.low[0]), float(d.high[0])) if name == "TanhNormal" else (-40.0, 40.0)
    edges = np.linspace(low, high, 400_001)
    return (0.5 * (edges[1:] + edges[:-1]))[:, None], np.full(400_000, edges[1] - edges[0])


@every_kind
def test_density_entropy_and_kl_against_sums_over_all_actions(name: str):
    """Σ p = 1, -Σ p log p and Σ p (log p - log q) in float64; a fine grid stands in for the real line."""
    with jax.enable_x64(True):
        p, q = (example(name, seed=s, batch=(), dtype=np.float64) for s in (0, 7))
        if name in ("DiagNormal", "TanhNormal"):  # one dimension
            bounds = {"low": -2.0, "high": 1.0} if name == "TanhNormal" else {}
            p, q = (d.replace(loc=d.loc[:1], scale=0.5 + 0.1 * d.scale[:1], **bounds) for d in (p, q))
        grid, weight = grid_of(name, p)
        log_p, log_q = (np.asarray(jax.jit(jax.vmap(d.log_prob))(grid)) for d in (p, q))
        mass = np.exp(log_p) * weight
        rtol = 1e-9 if name in ("Categorical", "MultiDiscrete") else 1e-4
        np.testing.assert_allclose(mass.sum(), 1.0, rtol=rtol)
        np.testing.assert_allclose(p.entropy(), -np.sum(mass * log_p), rtol=rtol)
        np.testing.assert_allclose(p.kl(q), np.sum(mass * (log_p - log_q)), rtol=rtol)


@every_kind
def test_kl_to_itself_is_zero_and_to_another_positive(name: str):
    p, q = example(name), example(name, seed=3)
    np.testing.assert_allclose(p.kl(p), np.zeros(3), atol=1e-6)
    assert float(p.kl(q).min()) > 0


@pytest.mark.thorough
@every_kind
def test_the_mean_surprise_of_draws_is_the_entropy(name: str):
    d = example(name)
    draws = jax.vmap(d.sample)(jax.random.split(KEY, 20_000))
    surprise = -jax.jit(jax.vmap(d.log_prob))(draws)
    error = np.abs(surprise.mean(0) - d.entropy())
    assert np.all(error < 5 * surprise.std(0) / math.sqrt(20_000))


@pytest.mark.parametrize("name", ["Categorical", "MultiDiscrete"])
def test_frequencies_of_draws(name: str):
    """Chi-square of 20,000 draws of one row over all joint actions, at 1e-6."""
    d = example(name, batch=())
    actions, _ = grid_of(name, d)
    draws = np.asarray(jax.jit(jax.vmap(d.sample))(jax.random.split(KEY, 20_000)))
    assert draws.dtype == np.int32
    expected = 20_000 * np.exp(np.asarray(jax.jit(jax.vmap(d.log_prob))(actions.astype(np.int32))))
    same = draws[:, None] == actions[None]
    counts = (same.all(-1) if same.ndim == 3 else same).sum(0)
    chi2 = np.sum((counts - expected) ** 2 / expected)
    degrees = len(expected) - 1
    assert chi2 < degrees + 6.5 * math.sqrt(2 * degrees)
    biased = np.roll(expected, 1)  # a sampler that is off by one would fail
    assert np.sum((counts - biased) ** 2 / biased) > degrees + 6.5 * math.sqrt(2 * degrees)


def test_tanh_normal_stays_inside_its_bounds():
    d = TanhNormal(jnp.float32([[-20, 0.3, 20]]), jnp.full((1, 3), 0.1), -0.1, jnp.float32([0.3, 5.0, 0.7]))
    for action in (d.sample(KEY), d.mode()):
        assert bool(jnp.all((action >= d.low) & (action <= jnp.broadcast_to(d.high, action.shape))))
    u = jnp.linspace(-4.0, 4.0, 9)[:, None]
    one = TanhNormal(jnp.zeros((9, 1)), jnp.ones((9, 1)), -3.0, 8.0)
    np.testing.assert_allclose(one.log_prob(one.squash(u)), one.log_prob_pre_tanh(u), rtol=1e-3)
    np.testing.assert_allclose(TanhNormal(jnp.zeros(1), 1.0, -3.0, 8.0).mode(), [2.5], rtol=1e-6)


# As pytrees


@every_kind
def test_a_distribution_that_left_a_vmap_is_one_over_the_batch(name: str):
    d = example(name, batch=(4,))
    x = d.sample(KEY)
    left, log_prob = jax.jit(jax.vmap(lambda d, x: (d, d.log_prob(x))))(d, x)
    np.testing.assert_allclose(jax.jit(lambda d, x: d.log_prob(x))(left, x), log_prob, rtol=1e-4, atol=1e-5)


@every_kind
def test_gradients(name: str):
    with jax.enable_x64(True):
        d, other = (example(name, seed=s, dtype=np.float64) for s in (0, 4))
        x = d.sample(KEY)
        leaves, structure = jax.tree.flatten(d)

        def numbers(*leaves):
            d = structure.unflatten(leaves)
            return d.log_prob(x), d.entropy(), d.kl(other)

        check_grads(
            jax.jit(numbers), tuple(jnp.asarray(leaf) for leaf in leaves), order=1, rtol=1e-6, atol=1e-6, eps=1e-6
        )


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [3, 2048])  # few and many: the layout in memory differs
def test_the_gradients_of_a_categorical_are_those_of_the_chain_rule(rows: int):
    logits, action = jnp.asarray(normal(rows, 3), jnp.float32), jnp.arange(rows) % 3
    weights = jnp.asarray(normal(2, rows, seed=1), jnp.float32)

    def by_chain_rule(logits):
        log_probs = jax.nn.log_softmax(logits)
        return log_probs[jnp.arange(rows), action], -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def written_out(logits):
        return Categorical(logits).log_prob(action), Categorical(logits).entropy()

    def one_by_one(logits):
        return jax.vmap(lambda row, a: (Categorical(row).log_prob(a), Categorical(row).entropy()))(logits, action)

    def total(numbers):
        return lambda logits: sum(jnp.vdot(w, jnp.sin(x)) for w, x in zip(weights, numbers(logits), strict=True))

    def numbers(f):
        """Value, derivative along the logits, gradient, and the second derivative along the logits."""
        gradient = jax.grad(total(f))
        return f(logits), jax.jvp(f, (logits,), (logits,))[1], gradient(logits), jax.jvp(gradient, (logits,), (logits,))

    expected = numbers(by_chain_rule)
    for f in (written_out, one_by_one):
        actual = jax.jit(lambda f=f: numbers(f))()
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), actual, expected)


def test_an_action_that_does_not_exist_has_no_gradient():
    logits = jnp.float32([[1.0, 2.0, 3.0]] * 3)
    _, pull = jax.vjp(lambda logits: Categorical(logits).log_prob(jnp.array([3, -1, 2])), logits)
    (slope,) = pull(jnp.ones(3))
    np.testing.assert_array_equal(slope[:2], 0.0)
    assert bool(jnp.all(slope[2] != 0.0))


@pytest.mark.parametrize("name", ["DiagNormal", "TanhNormal"])
def test_draws_are_reparameterized(name: str):
    with jax.enable_x64(True):
        d = example(name, dtype=np.float64)
        draw = lambda loc, scale: d.replace(loc=loc, scale=scale).sample(KEY)  # noqa: E731
        args = (jnp.asarray(d.loc), jnp.asarray(d.scale))
        check_grads(jax.jit(draw), args, order=1, rtol=1e-6, atol=1e-6, eps=1e-6)


@every_kind
def test_dtypes_go_up_to_float32_and_never_down(name: str):
    with jax.enable_x64(True):
        for dtype, expected in ((jnp.bfloat16, "float32"), (np.float32, "float32"), (np.float64, "float64")):
            d = jax.tree.map(lambda x, dtype=dtype: jnp.asarray(x).astype(dtype), example(name, dtype=np.float64))
            numbers = jax.eval_shape(lambda d: (d.log_prob(d.sample(KEY)), d.entropy(), d.kl(d)), d)
            assert {x.dtype.name for x in numbers} == {expected}


@every_kind
def test_another_shape_is_an_error_that_names_the_argument(name: str):
    d = example(name)
    x = d.sample(KEY)
    with pytest.raises(ValueError, match=r"^(action|x) has shape \(3, 1"):
        d.log_prob(x[:, None])
    other = example(name, batch=(3, 1))
    with pytest.raises(ValueError, match=r"^other\.\w+ has shape \(3, 1"):
        d.kl(other)


def test_actions_that_are_no_integers_are_errors():
    for d, action in ((Categorical(jnp.zeros((2, 3))), jnp.ones(2)), (MultiDiscrete(jnp.zeros(9), NVEC), jnp.ones(3))):
        with pytest.raises(ValueError, match=r"^action has dtype float32, expected integers"):
            d.log_prob(action)


def test_wrong_masks_and_parts_are_errors():
    with pytest.raises(ValueError, match=r"^mask has shape \(3,\), expected \(2, 3\)"):
        Categorical.masked(jnp.zeros((2, 3)), jnp.ones(3, bool))
    with pytest.raises(ValueError, match=r"^logits has shape \(5,\), expected \(9,\)"):
        MultiDiscrete(jnp.zeros(5), NVEC).entropy()
    with pytest.raises(ValueError, match=r"^other\.nvec is \(9,\), expected \(2, 3, 4\)"):
        MultiDiscrete(jnp.zeros(9), NVEC).kl(MultiDiscrete(jnp.zeros(9), (9,)))

"""The optimizer: each kind against its rule in NumPy, weight decay, clipping, and learning rates of parts."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.agents.common.hyper import OptimizerHyper
from rlkit.agents.common.optimizer import Optimizer, clip_norm

PARAMS = {"kernel": jnp.float32([[1.0, -2.0], [3.0, 4.0]]), "bias": jnp.float32([5.0, -6.0])}
GRADS = {"kernel": jnp.float32([[0.5, -1.0], [2.0, 0.25]]), "bias": jnp.float32([-3.0, 1.5])}
LARGE = (160, 160)  # a leaf whose moments are not joined with those of others
KINDS = ["adam", "adamw", "radam", "rmsprop", "sgd"]
RATE, DECAY, EPS = 0.1, 0.01, 1e-3


def steps(kind, count=3, rate=RATE, params=PARAMS, grads=GRADS, **hyper):
    """The parameters after `count` steps along the same gradient."""
    hyper = OptimizerHyper(adam_eps=EPS, weight_decay=DECAY if kind == "adamw" else 0.0, **hyper)
    optimizer = Optimizer.of(SimpleNamespace(optimizer=kind), jax.tree.map(jnp.float32, hyper), rate)
    step = jax.jit(lambda params, state: optimizer.step(params, state, grads)[:2])
    state = optimizer.init(params)
    for _ in range(count):
        params, state = step(params, state)
    return params


def by_hand(kind, count):
    """The same in NumPy, float64."""
    found = {}
    for name, x in PARAMS.items():
        x, g = np.asarray(x, np.float64), np.asarray(GRADS[name], np.float64)
        m = v = np.zeros_like(x)
        for t in range(1, count + 1):
            if kind == "sgd":
                move = g
            elif kind == "rmsprop":
                v = 0.99 * v + 0.01 * g**2
                move = g / (np.sqrt(v) + EPS)
            else:
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                move = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + EPS)
            if kind == "radam":  # Liu et al. 2020, algorithm 2: the second moment only from the sixth step on
                rho = 1999 - 2 * t * 0.999**t / (1 - 0.999**t)
                share = np.sqrt(max(0, (rho - 4) * (rho - 2) * 1999 / ((1999 - 4) * (1999 - 2) * rho)))
                move = share * move if rho >= 5 else m / (1 - 0.9**t)
            if kind == "adamw" and name == "kernel":  # biases do not decay
                move = move + DECAY * x
            x = x - RATE * move
        found[name] = x
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [3, 10])
def test_each_kind_by_hand(kind, count):
    found, expected = steps(kind, count), by_hand(kind, count)
    for name in PARAMS:
        # The rectification is a difference of numbers near 2,000. The steps after the fifth are 0.01 together.
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-4 if kind == "radam" else 1e-5)


@pytest.mark.parametrize("kind", ["adamw", *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != "adamw")])
def test_large_leaves_take_the_steps_of_small_ones(kind):
    """Each number of a large leaf, between two small ones, moves as a small leaf of the same number would."""
    params = PARAMS | {"large": jnp.full(LARGE, 2.0), "a": jnp.float32(-1.0)}
    grads = GRADS | {"large": jnp.full(LARGE, 0.5), "a": jnp.float32(0.25)}
    small = {"large": jnp.full((1, 1), 2.0)}, {"large": jnp.full((1, 1), 0.5)}
    rates = {name: jnp.float32(0.1 * (1 + i)) for i, name in enumerate(params)}
    found = steps(kind, rate=rates, params=params, grads=grads, max_grad_norm=jnp.inf)
    alone = steps(kind, rate=rates, params=params | small[0], grads=grads | small[1], max_grad_norm=jnp.inf)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, np.broadcast_to(y, x.shape), rtol=1e-6), found, alone)


def test_moments_of_small_leaves_are_one_array():
    params = {"layers": [jnp.zeros((64, 64)), jnp.zeros(64), jnp.zeros((64, 4))], "large": jnp.zeros(LARGE)}
    _, adam = Optimizer(RATE, jnp.inf, EPS).init(params)
    assert [x.shape for x in jax.tree.leaves(adam.mu)] == [(64 * 64 + 64 + 64 * 4,), LARGE]


def test_the_gradient_is_clipped_first():
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in GRADS.values()))
    for name, x in steps("sgd", 1, max_grad_norm=0.5).items():
        np.testing.assert_allclose(x, PARAMS[name] - RATE * GRADS[name] * 0.5 / norm, rtol=1e-6)


def test_parts_have_learning_rates_of_their_own():
    rates = {"kernel": jnp.float32(0.1), "bias": jnp.float32(0.3)}
    for name, x in steps("sgd", 1, rate=rates).items():
        np.testing.assert_allclose(x, PARAMS[name] - rates[name] * GRADS[name], rtol=1e-6)
    same = steps("adam", rate=dict.fromkeys(PARAMS, jnp.float32(RATE)))
    jax.tree.map(np.testing.assert_array_equal, same, steps("adam", rate=jnp.float32(RATE)))


def test_clipping_by_a_norm():
    clipped = clip_norm(GRADS, 1.0)
    np.testing.assert_allclose(sum(np.sum(np.square(x)) for x in clipped.values()), 1.0, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, clip_norm(GRADS, jnp.inf), GRADS)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_learning_rate_rises_and_falls(kind):
    config = SimpleNamespace(learning_rate_schedule=kind)
    hyper = OptimizerHyper(learning_rate=1.0, learning_rate_end=0.2, warmup_steps=10.0, schedule_steps=100.0)
    before = np.arange(0, 130, 5)
    found = [Optimizer.scheduled_rate(config, hyper, jnp.float32(n), jnp.float32(n + 5)) for n in before]
    progress = np.minimum(before / 100, 1)
    factor = {"constant": 1, "linear": 1 - progress, "cosine": (1 + np.cos(np.pi * progress)) / 2}[kind]
    full = 1.0 if kind == "constant" else 0.2 + 0.8 * factor
    np.testing.assert_allclose(found, full * np.minimum((before + 5) / 10, 1), rtol=1e-5)


def test_the_default_is_the_plain_schedule():
    config, hyper = SimpleNamespace(learning_rate_schedule="linear"), OptimizerHyper(schedule_steps=64.0)
    for n in range(0, 64, 8):
        found = Optimizer.scheduled_rate(config, hyper, jnp.float32(n), jnp.float32(n + 8))
        assert float(found) == float(jnp.float32(3e-4) * (1 - jnp.float32(n) / 64))


def test_the_deviations_of_gsde_do_not_decay():
    """They are a matrix of logarithms: towards 0 they would grow to 1, whatever is learned."""
    params = {"loc": {"kernel": jnp.ones((2, 3))}, "log_std": jnp.full((2, 3), -2.0)}
    after = steps("adamw", params=params, grads=jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_array_equal(after["log_std"], params["log_std"])
    assert (after["loc"]["kernel"] < 1.0).all()

"""rlkit.ops.windows: the n-step return of a window, by hand and against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops.windows import n_step_window

window = jax.jit(n_step_window)


def flags(*values):
    return np.array(values, bool)


@pytest.mark.parametrize(
    ("terminated", "mask", "reward", "discount", "last"),
    [
        ((0, 0, 0), (1, 1, 1), 1 + 0.9 * 2 + 0.81 * 4, 0.729, 2),
        ((0, 0, 0), (1, 1, 0), 1 + 0.9 * 2, 0.81, 1),  # cut off after two steps: the bootstrap counts γ^2, not γ^3
        ((0, 1, 0), (1, 1, 0), 1 + 0.9 * 2, 0.0, 1),
        ((0, 0, 1), (1, 1, 1), 1 + 0.9 * 2 + 0.81 * 4, 0.0, 2),
        ((0, 0, 1), (1, 1, 0), 1 + 0.9 * 2, 0.81, 1),  # a flag behind the mask is of another episode
        ((1, 0, 0), (1, 0, 0), 1, 0.0, 0),
        ((0, 0, 0), (1, 0, 0), 1, 0.9, 0),
        ((0, 0, 0), (0, 0, 0), 0, 1.0, 0),
        ((1, 1, 1), (0, 0, 0), 0, 1.0, 0),
    ],
)
def test_by_hand(terminated, mask, reward, discount, last):
    result = window(np.float32([1, 2, 4]), flags(*terminated), flags(*mask), gamma=0.9)
    np.testing.assert_allclose(result.reward, reward, rtol=1e-6)
    np.testing.assert_allclose(result.discount, discount, rtol=1e-6)
    assert int(result.last) == last
    assert result.last.dtype == jnp.int32


def slow(reward, terminated, mask, gamma):
    total, discount, last = 0.0, 1.0, 0
    for i in range(len(reward)):
        if not mask[i]:
            break
        total += discount * reward[i]
        discount *= gamma
        last = i
        ended = terminated[i]
    return total, 0.0 if mask[0] and ended else discount, last


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_random_windows_against_a_loop(length, gamma):
    rng = np.random.default_rng(length)
    reward = rng.normal(size=(4, 50, length)).astype(np.float32)
    terminated = rng.random(reward.shape) < 0.3
    mask = np.arange(length) < rng.integers(0, length + 1, (4, 50, 1))
    result = window(reward, terminated, mask, gamma=gamma)
    for i in np.ndindex(4, 50):
        expected = slow(reward[i].astype(np.float64), terminated[i], mask[i], gamma)
        np.testing.assert_allclose([x[i] for x in result], expected, rtol=1e-5, atol=1e-6)


def test_one_window_and_many_agree():
    rng = np.random.default_rng(0)
    reward, mask = rng.normal(size=(6, 3)).astype(np.float32), np.arange(3) < rng.integers(0, 4, (6, 1))
    terminated = rng.random((6, 3)) < 0.5
    together = window(reward, terminated, mask, gamma=0.9)
    mapped = jax.vmap(lambda *x: n_step_window(*x, gamma=0.9))(reward, terminated, mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), together, mapped)


def test_entries_behind_the_mask_do_not_enter():
    reward, mask = np.float32([1, np.nan, np.inf]), flags(1, 0, 0)

    def total(reward):
        return n_step_window(reward, flags(0, 1, 1), mask, gamma=0.9).reward

    assert float(total(reward)) == 1.0
    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray(reward)), [1, 0, 0])
    empty = window(np.float32([np.nan, np.nan]), flags(1, 0), flags(0, 0), gamma=0.9)
    assert (float(empty.reward), float(empty.discount)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"terminated": flags(0, 0)}, r"terminated has shape \(2,\), expected \(3,\), the shape of reward"),
        ({"mask": flags(0)}, r"mask has shape \(1,\), expected \(3,\)"),
        ({"mask": np.ones(3, np.int32)}, "mask has dtype int32, expected bool"),
        ({"terminated": np.zeros(3, np.float32)}, "terminated has dtype float32, expected bool"),
        ({"gamma": np.float32([0.9, 0.9])}, r"gamma has shape \(2,\), expected a scalar"),
    ],
)
def test_errors(changed, words):
    inputs = {"reward": np.zeros(3, np.float32), "terminated": flags(0, 0, 0), "mask": flags(1, 1, 1), "gamma": 0.9}
    with pytest.raises(ValueError, match=words):
        n_step_window(**(inputs | changed))


def test_float64_stays_and_bfloat16_is_promoted():
    assert window(jnp.zeros(3, jnp.bfloat16), flags(0, 0, 0), flags(1, 1, 1), gamma=0.9).reward.dtype == jnp.float32
    with jax.enable_x64(True):
        result = n_step_window(np.zeros(3), flags(0, 0, 0), flags(1, 1, 1), gamma=0.9)
    assert (result.reward.dtype, result.discount.dtype) == (jnp.float64, jnp.float64)

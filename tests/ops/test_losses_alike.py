"""What holds for every loss: gradients, dtypes, and errors that name the argument."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from loss_arrays import normal
from mistakes import mistake

from rlkit.ops import distributional, losses


def columns(n: int, seed: int = 0) -> list[np.ndarray]:
    return list(normal(n, 6, seed=seed))


ACTION = np.array([0, 2, 1, 2, 0, 1])
ATOMS = np.linspace(-2.0, 2.0, 4)
SIX = np.linspace(0.0, 0.9, 6)
# name: function of float arrays, the arrays, how many of them are differentiated, and the name of a wrong argument
CASES = {
    "ppo_clip": (partial(losses.ppo_clip, clip_eps=0.2, dual_clip=3.0), columns(3), 3),
    "kl_approx": (losses.kl_approx, columns(2), 2),
    "normalize_advantage": (losses.normalize_advantage, columns(1), 1),
    "clipped_value_loss": (partial(losses.clipped_value_loss, clip_eps=0.5), columns(3), 3),
    "huber": (losses.huber, columns(1), 1),
    "td_error": (losses.td_error, [*columns(2), SIX, *columns(1)], 1),
    "q_learning": (
        lambda q, reward, discount, next_q: losses.q_learning(q, ACTION, reward, discount, next_q),
        [normal(6, 3), *columns(1), SIX, normal(6, 3, seed=1)],
        1,
    ),
    "double_q_learning": (
        lambda q, reward, discount, next_q, sel: losses.double_q_learning(q, ACTION, reward, discount, next_q, sel),
        [normal(6, 3), *columns(1), SIX, normal(6, 3, seed=1), normal(6, 3, seed=2)],
        1,
    ),
    "signed_hyperbolic": (losses.signed_hyperbolic, columns(1), 1),
    "signed_parabolic": (losses.signed_parabolic, columns(1), 1),
    "categorical_projection": (
        lambda probs, source: distributional.categorical_projection(probs, source, ATOMS.astype(source.dtype)),
        [np.abs(normal(6, 4)), normal(6, 4, seed=1)],
        2,
    ),
    "categorical_double_q_learning": (
        lambda logits, reward, discount, next_logits, sel: distributional.categorical_double_q_learning(
            logits, ACTION, reward, discount, next_logits, sel, ATOMS.astype(np.float32)
        ),
        [normal(6, 3, 4), *columns(1), SIX, normal(6, 3, 4, seed=1), normal(6, 3, seed=2)],
        1,
    ),
    "quantile_q_learning": (
        lambda quantiles, reward, discount, following: distributional.quantile_q_learning(
            quantiles, np.float32([0.2, 0.5, 0.8]), ACTION, reward, discount, following, following
        ),
        [normal(6, 3, 3), *columns(1), SIX, normal(6, 4, 3, seed=1)],
        1,
    ),
    "quantile_huber": (
        lambda quantiles, target: distributional.quantile_huber(quantiles, np.float32([0.2, 0.5, 0.8]), target),
        [normal(6, 3), normal(6, 4, seed=1)],
        1,
    ),
}
every_loss = pytest.mark.parametrize("name", CASES)


@every_loss
def test_gradients(name: str):
    fn, args, differentiated = CASES[name]
    with jax.enable_x64(True):
        args = [jnp.asarray(x) for x in args]
        first = tuple(args[:differentiated])
        check_grads(
            jax.jit(lambda *xs: fn(*xs, *args[differentiated:])), first, order=1, rtol=1e-6, atol=1e-6, eps=1e-6
        )


@every_loss
def test_dtypes_go_up_to_float32_and_never_down(name: str):
    fn, args, _ = CASES[name]
    with jax.enable_x64(True):
        for dtype, expected in ((jnp.bfloat16, "float32"), (np.float32, "float32"), (np.float64, "float64")):
            assert jax.eval_shape(fn, *(jnp.asarray(x).astype(dtype) for x in args)).dtype.name == expected


@pytest.mark.parametrize(
    ("fn", "names", "scalars"),
    [
        (losses.ppo_clip, ("log_prob", "old_log_prob", "advantage"), ("clip_eps",)),
        (losses.kl_approx, ("log_prob", "old_log_prob"), ()),
        (losses.clipped_value_loss, ("value", "old_value", "target"), ("clip_eps",)),
        (losses.td_error, ("value", "reward", "discount", "next_value"), ()),
    ],
)
def test_a_column_against_a_row_is_an_error_that_names_the_argument(fn, names, scalars):
    row, column = np.zeros(4, np.float32), np.zeros((4, 1), np.float32)
    fixed = dict.fromkeys(scalars, 0.2)
    for wrong in names[1:]:
        with pytest.raises(ValueError, match=rf"^{wrong} has shape \(4, 1\), expected \(4,\), the shape of {names[0]}"):
            fn(*(column if name == wrong else row for name in names), **fixed)
    for name in scalars:
        with pytest.raises(ValueError, match=rf"^{name}\w* has shape \(4,\), expected a scalar"):
            fn(*(row for _ in names), **{name: row})


def test_shapes_of_action_values_are_checked():
    q, row, column = np.zeros((4, 3), np.float32), np.zeros(4, np.float32), np.zeros((4, 1), np.float32)
    action, logits = np.zeros(4, np.int32), np.zeros((4, 3, 5), np.float32)
    atoms = np.linspace(0, 1, 5, dtype=np.float32)
    categorical, quantiles = distributional.categorical_double_q_learning, distributional.quantile_q_learning
    for part, function, *arguments in (
        ("action has shape (4, 1)", losses.q_learning, q, action[:, None], row, row, q),
        ("next_q has shape (4, 2)", losses.q_learning, q, action, row, row, q[:, :2]),
        ("reward has shape (4, 1)", losses.q_learning, q, action, column, row, q),
        ("reward has shape (4, 1)", categorical, logits, action, column, row, logits, q, atoms),
        ("atoms has shape (4,)", categorical, logits, action, row, row, logits, q, atoms[:4]),
        ("next_q_selector has shape (4, 3, 5)", categorical, logits, action, row, row, logits, logits, atoms),
        ("target has shape (4, 3, 5)", distributional.categorical_cross_entropy, logits, action, logits),
        ("tau has shape (4,)", quantiles, logits, atoms[:4], action, row, row, logits, logits),
        ("next_quantiles has shape (4, 3, 4)", quantiles, logits, atoms[:3], action, row, row, logits[..., :4], logits),
        ("target has shape (3, 2)", distributional.quantile_huber, q, atoms[:3], q[:3, :2]),
        ("mask has shape (4, 1)", losses.normalize_advantage, row, column.astype(bool)),
    ):
        with mistake(part, kind=ValueError):
            function(*arguments)

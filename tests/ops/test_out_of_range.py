"""Arguments out of their range: an error that names them, or NaN where they are traced or of single items."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlkit.ops import distributional, losses, returns
from rlkit.ops.distributions import Categorical, MultiDiscrete, TanhNormal

ONE = np.ones(1, np.float32)
FLAGS = np.zeros(1, bool)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("clip_eps_low", lambda: losses.ppo_clip(ONE, ONE, ONE, clip_eps=-0.2)),
        ("clip_eps", lambda: losses.ppo_clip(ONE, ONE, ONE, clip_eps=(0.1, 0.2, 0.3))),
        ("clip_eps", lambda: losses.clipped_value_loss(ONE, ONE, ONE, clip_eps=-1.0)),
        ("delta", lambda: losses.huber(ONE, -1.0)),
        ("rho_clip", lambda: returns.vtrace(ONE, ONE, ONE, FLAGS, FLAGS, ONE, ONE, gamma=0.9, rho_clip=-1.0)),
        ("n", lambda: returns.n_step_returns(ONE, ONE, FLAGS, FLAGS, gamma=0.9, n=2.0)),
        ("reward", lambda: returns.gae([], [], [], [], [], gamma=0.9, gae_lambda=0.9)),
        ("kappa", lambda: distributional.quantile_huber(ONE[None], ONE / 2, ONE[None], kappa=-1)),
        ("atoms", lambda: distributional.categorical_projection(ONE[None], ONE[None], [1.0, 0.0])),
        ("action", lambda: losses.q_learning([[1.0, 2.0]], [1.0], ONE, ONE, [[1.0, 2.0]])),
        ("mask", lambda: losses.normalize_advantage(ONE, ONE)),
        ("other.low", lambda: TanhNormal(ONE, 1.0, -1.0).kl(TanhNormal(ONE, 1.0, -2.0))),
    ],
)
def test_an_argument_out_of_range_is_named(name, call):
    with pytest.raises(ValueError, match=f"^{name}[ =]"):
        call()


@pytest.mark.parametrize("action", [-1, 2])
def test_the_value_of_an_action_that_does_not_exist_is_nan(action):
    q, target = jnp.array([[1.0, 2.0]]), jnp.array([[0.5, 0.5]])
    assert np.isnan(losses.q_learning(q, [action], ONE, ONE, q)).all()
    assert np.isnan(distributional.categorical_cross_entropy(jnp.zeros((1, 2, 2)), [action], target)).all()
    of_quantiles = distributional.quantile_q_learning(q[:, None], ONE / 2, [action], ONE, ONE, q[:, None], q[:, None])
    assert np.isnan(of_quantiles).all()


def test_logits_of_minus_infinity_have_no_part_in_entropy_and_kl():
    masked, whole = jnp.array([0.0, 1.0, -jnp.inf]), jnp.array([0.0, 1.0])
    for of in (lambda x: Categorical(x).entropy(), lambda x: Categorical(x).kl(Categorical(jnp.zeros(x.shape)))):
        slope = jax.grad(of)(masked)
        assert slope[2] == 0
        np.testing.assert_allclose(slope[:2], jax.grad(of)(whole), rtol=1e-5)
    np.testing.assert_allclose(Categorical(masked).entropy(), Categorical(whole).entropy(), rtol=1e-6)
    uniform = Categorical(jnp.zeros(3))
    np.testing.assert_allclose(Categorical(masked).kl(uniform), np.log(3) - Categorical(whole).entropy(), rtol=1e-5)
    assert uniform.kl(Categorical(masked)) == np.inf


def test_lists_are_as_good_as_arrays():
    assert Categorical([0.0, 1.0]).mode() == 1
    assert Categorical.masked([0.0, 1.0], [True, False]).mode() == 0
    assert losses.normalize_advantage([1.0, 2.0, 9.0], [True, True, False])[2] == 0
    parts = MultiDiscrete(jnp.zeros(5), np.array([2, 3]))
    assert parts.kl(parts) == 0

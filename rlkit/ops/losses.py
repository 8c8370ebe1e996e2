"""Losses for policies and values, per sample: PPO's surrogate, KL, value losses, TD errors of Q-learning.

Each function returns one number per sample and leaves averaging, weights and masks to the caller. The entropy of an
entropy bonus is a method of `ops.distributions`. Shapes must agree exactly. Inputs below float32 are promoted to
float32; float64 stays float64. `discount` is γ^n, and 0 at terminal states; a next value with discount 0 does not
enter the result and may be NaN.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit import _mesh
from rlkit.ops._arrays import as_floats, check_bools, check_integers, check_shape, check_shapes, pick, scalars
from rlkit.types import Array

MAX_LOG_RATIO = 20.0  # e^20 = 4.9e8: beyond any ratio that carries information, and far from float32's overflow


def ppo_clip(
    log_prob: ArrayLike,
    old_log_prob: ArrayLike,
    advantage: ArrayLike,
    *,
    clip_eps: ArrayLike | tuple[ArrayLike, ArrayLike],
    dual_clip: ArrayLike | None = None,
) -> Array:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), with the dual clip of Ye et al. 2020, eq. 4.

    -min(r A, clip(r, 1 - ε, 1 + ε) A) with r = exp(log_prob - old_log_prob). Beyond e^20 the ratio continues along its
    tangent, so that value and gradient stay finite and keep their sign.

    Args:
      log_prob: [B] float (or any shape), of the actions in the batch under the parameters being trained.
      old_log_prob: [B] float, of the same actions under the parameters before the update.
      advantage: [B] float.
      clip_eps: scalar >= 0, or a pair (low, high): the ratio is clipped to [1 - low, 1 + high]; infinity means off.
      dual_clip: scalar > 1, or None. Where A < 0 the loss is at most -dual_clip * A; infinity means off.

    Returns:
      [B] float, the loss of each sample.

    Raises:
      ValueError: a shape differs from that of `log_prob`, or a coefficient is not a scalar, or is a negative number.
    """
    check_shapes(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    log_prob, old_log_prob, advantage = as_floats(log_prob, old_log_prob, advantage)
    pair = clip_eps if isinstance(clip_eps, tuple | list) else (clip_eps, clip_eps)
    if len(pair) != 2:
        raise ValueError(f"clip_eps has {len(pair)} entries, expected a scalar or a pair (low, high)")
    low, high = pair
    low, high, dual_clip = scalars(
        log_prob, clip_eps_low=low, clip_eps_high=high, dual_clip=jnp.inf if dual_clip is None else dual_clip
    )
    ratio = _ratio(log_prob - old_log_prob)
    # The minimum bounds the ratio from above where A > 0 and from below where A < 0, and there the dual clip bounds it
    # from above. The ratio is clipped and not the products: an infinite bound times a zero advantage would be NaN.
    # Selects and not minimum and maximum, whose gradients split a tie in halves.
    highest = jnp.where(advantage < 0, dual_clip, 1.0 + high)
    lowest = jnp.where(advantage < 0, 1.0 - low, -jnp.inf)
    clipped_ratio = jnp.where(ratio > highest, highest, jnp.where(ratio < lowest, lowest, ratio))
    return -clipped_ratio * advantage


def kl_approx(log_prob: ArrayLike, old_log_prob: ArrayLike) -> Array:
    """The k3 estimator of KL(old || new) from actions of the old policy, r - 1 - log r (Schulman 2020, blog).

    Args:
      log_prob: [B] float (or any shape), of the actions in the batch under the new parameters.
      old_log_prob: [B] float, of the same actions under the parameters that acted.

    Returns:
      [B] float, in nats, >= 0 also under rounding; its mean is unbiased. Beyond r = e^20 it continues linearly.

    Raises:
      ValueError: the shapes differ.
    """
    check_shapes(log_prob=log_prob, old_log_prob=old_log_prob)
    log_prob, old_log_prob = as_floats(log_prob, old_log_prob)
    log_ratio = log_prob - old_log_prob
    capped, excess = _capped_and_excess(log_ratio)
    # expm1 is accurate for log-ratios close to 0, which are the usual case.
    return jnp.maximum(jnp.expm1(capped) - log_ratio + jnp.exp(capped) * excess, 0.0)


def adaptive_kl_coef(coef: ArrayLike, kl: ArrayLike, *, target_kl: ArrayLike) -> Array:
    """The next coefficient of a KL penalty: halved where KL < target / 1.5, doubled where KL > 1.5 target.

    Schulman et al. 2017, section 4. It stays in [1e-6, 1e6], so that neither 0 nor infinity is absorbing. All arguments
    are scalars > 0, the KL divergences in nats; the result is [] float.

    Raises:
      ValueError: an argument is not a scalar.
    """
    coef, kl = as_floats(coef, kl)
    coef, kl, target_kl = scalars(coef, coef=coef, kl=kl, target_kl=target_kl)
    adapted = coef * jnp.where(kl > 1.5 * target_kl, 2.0, jnp.where(kl < target_kl / 1.5, 0.5, 1.0))
    return jnp.clip(adapted, 1e-6, 1e6)


def normalize_advantage(
    advantage: ArrayLike, mask: ArrayLike | None = None, *, epsilon: float = 1e-8, axis_name: str | None = None
) -> Array:
    """Advantages with mean 0 and standard deviation 1 over all axes: (A - mean) / (std + epsilon).

    A single advantage, or equal ones, give exactly 0 and a finite gradient. The deviation is that of the population.

    Args:
      advantage: [...] float.
      mask: [...] bool, True for the entries that count; None means all. The others are 0 in the result and may be NaN.
      epsilon: added to the standard deviation.
      axis_name: of the mesh axis whose devices have equal parts of the advantages; None for one device.

    Returns:
      [...] float.

    Raises:
      ValueError: the shapes differ, or the mask is not bool.
    """
    (advantage,) = as_floats(advantage)
    if not advantage.size:
        return advantage
    # One entry is subtracted first, so that equal entries become exactly 0: subtracting only the mean would leave a
    # rounding error, which the division by an equally small deviation would scale up to 1.
    if mask is None:
        origin, count = advantage[(0,) * advantage.ndim], advantage.size * _mesh.size(axis_name)
    else:
        check_shapes(advantage=advantage, mask=mask)
        check_bools(mask=mask)
        mask = jnp.asarray(mask)
        origin = jnp.max(advantage, where=mask, initial=jnp.finfo(advantage.dtype).min)
        count = jnp.maximum(_mesh.total(jnp.sum(mask, dtype=advantage.dtype), axis_name), 1.0)

    def masked(x: Array) -> Array:
        return x if mask is None else jnp.where(mask, x, 0.0)

    shifted = masked(advantage - _mesh.largest(jax.lax.stop_gradient(origin), axis_name))
    centered = masked(shifted - _mesh.total(jnp.sum(shifted), axis_name) / count)
    variance = _mesh.total(jnp.sum(centered**2), axis_name) / count
    # The derivative of the square root is infinite at 0, so a variance of 0 is replaced before the root.
    std = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 0.0)
    return centered / (std + epsilon)


def clipped_value_loss(value: ArrayLike, old_value: ArrayLike, target: ArrayLike, *, clip_eps: ArrayLike) -> Array:
    """Half the larger of two squared errors: of the value, and of the value clipped around its old one.

    0.5 max((V - G)^2, (clip(V, V_old - ε, V_old + ε) - G)^2), as in the code of Schulman et al. 2017.

    Args:
      value: [B] float (or any shape), of the parameters being trained.
      old_value: [B] float, of the parameters before the update.
      target: [B] float.
      clip_eps: scalar > 0 in units of the value; infinity means off.

    Returns:
      [B] float, the loss of each sample.

    Raises:
      ValueError: a shape differs from that of `value`, or clip_eps is not a scalar.
    """
    check_shapes(value=value, old_value=old_value, target=target)
    value, old_value, target = as_floats(value, old_value, target)
    (clip_eps,) = scalars(value, clip_eps=clip_eps)
    clipped = jax.lax.clamp(old_value - clip_eps, value, old_value + clip_eps)
    error, clipped_error = (value - target) ** 2, (clipped - target) ** 2
    return 0.5 * jnp.where(clipped_error > error, clipped_error, error)


def huber(error: ArrayLike, delta: ArrayLike = 1.0) -> Array:
    """The Huber loss: half the squared error up to `delta`, linear beyond (Huber 1964).

    Args:
      error: [...] float.
      delta: scalar > 0; infinity gives half the square.

    Returns:
      [...] float.

    Raises:
      ValueError: delta is not a scalar.
    """
    (error,) = as_floats(error)
    (delta,) = scalars(error, delta=delta)
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, delta)
    return quadratic * (size - 0.5 * quadratic)


def td_error(value: ArrayLike, reward: ArrayLike, discount: ArrayLike, next_value: ArrayLike) -> Array:
    """The one-step error r + γ V(o') - V(o), target minus value (Sutton and Barto 2018, eq. 6.5).

    Args:
      value: [B] float (or any shape), V(o) or Q(o, a).
      reward: [B] float.
      discount: [B] float.
      next_value: [B] float, V(o'); no gradient flows into the target.

    Returns:
      [B] float.

    Raises:
      ValueError: a shape differs from that of `value`.
    """
    check_shapes(value=value, reward=reward, discount=discount, next_value=next_value)
    value, reward, discount, next_value = as_floats(value, reward, discount, next_value)
    return jax.lax.stop_gradient(reward + _discounted(discount, next_value)) - value


def q_learning(q: ArrayLike, action: ArrayLike, reward: ArrayLike, discount: ArrayLike, next_q: ArrayLike) -> Array:
    """The Q-learning error r + γ max_a Q(o', a) - Q(o, a) (Watkins 1989).

    Args:
      q: [B, A] float, Q(o, .).
      action: [B] int; the error of an action that does not exist is NaN.
      reward: [B] float.
      discount: [B] float.
      next_q: [B, A] float, Q(o', .) of the target network; no gradient flows into the target.

    Returns:
      [B] float, target minus value.

    Raises:
      ValueError: the shapes do not agree.
    """
    return double_q_learning(q, action, reward, discount, next_q, next_q)


def double_q_learning(
    q: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    discount: ArrayLike,
    next_q: ArrayLike,
    next_q_selector: ArrayLike,
) -> Array:
    """The double Q-learning error: one network selects the next action, another evaluates it.

    van Hasselt et al. 2016, eq. 4.

    Args:
      q: [B, A] float, Q(o, .).
      action: [B] int; the error of an action that does not exist is NaN.
      reward: [B] float.
      discount: [B] float.
      next_q: [B, A] float, Q(o', .) of the target network; no gradient flows into the target.
      next_q_selector: [B, A] float, Q(o', .) of the online network.

    Returns:
      [B] float, target minus value.

    Raises:
      ValueError: the shapes do not agree.
    """
    check_shapes(q=q, next_q=next_q, next_q_selector=next_q_selector)
    check_shape("action", action, np.shape(q)[:-1])
    check_integers(action=action)
    next_action = jnp.argmax(jnp.asarray(next_q_selector), axis=-1)
    return td_error(pick(jnp.asarray(q), action), reward, discount, pick(jnp.asarray(next_q), next_action))


def signed_hyperbolic(x: ArrayLike, epsilon: float = 1e-3) -> Array:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + ε x, which compresses returns (Pohlen et al. 2018, proposition A.2).

    Args:
      x: [...] float.
      epsilon: > 0; makes the inverse Lipschitz continuous.

    Returns:
      [...] float.
    """
    (x,) = as_floats(x)
    # sqrt(a + 1) - 1 = a / (sqrt(a + 1) + 1), which avoids cancellation.
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + epsilon * x


def signed_parabolic(x: ArrayLike, epsilon: float = 1e-3) -> Array:
    """The inverse of `signed_hyperbolic` (Pohlen et al. 2018, proposition A.2).

    Args:
      x: [...] float.
      epsilon: > 0, as in `signed_hyperbolic`.

    Returns:
      [...] float.
    """
    (x,) = as_floats(x)
    root = jnp.sqrt(1.0 + 4.0 * epsilon * (epsilon + 1.0 + jnp.abs(x)))
    # u = sqrt(|h^-1(x)| + 1) - 1 in a form without cancellation; then h^-1(x) = u (u + 2) with the sign of x.
    u = 2.0 * x / (root + 1.0 + 2.0 * epsilon)
    return u * (jnp.abs(u) + 2.0)


def _ratio(log_ratio: Array) -> Array:
    """exp, continued along its tangent beyond MAX_LOG_RATIO, so that value and gradient stay finite."""
    capped, excess = _capped_and_excess(log_ratio)
    return jnp.exp(capped) * (1.0 + excess)


def _capped_and_excess(log_ratio: Array) -> tuple[Array, Array]:
    """The parts of a log-ratio up to and beyond MAX_LOG_RATIO, which add up to it."""
    beyond = log_ratio > MAX_LOG_RATIO
    return jnp.where(beyond, MAX_LOG_RATIO, log_ratio), jnp.where(beyond, log_ratio - MAX_LOG_RATIO, 0.0)


def _discounted(discount: Array, next_value: Array) -> Array:
    """discount * next_value, and 0 at discount 0 also where the next value is NaN or infinite."""
    return jnp.where(discount == 0, 0.0, discount * next_value)

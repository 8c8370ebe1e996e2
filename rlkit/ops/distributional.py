"""Distributional Q-learning: the categorical projection and loss of C51, and quantile regression (QR-DQN, IQN, TQC).

Per sample, as in `rlkit.ops.losses`: shapes agree exactly, inputs below float32 are promoted to float32, float64 stays
float64, and `discount` is γ^n, and 0 at terminal states. No gradient flows into targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rlkit.ops._arrays import as_floats, check_integers, check_shape, check_shapes, no_wraparound, scalars
from rlkit.types import Array


def categorical_projection(probs: ArrayLike, source_atoms: ArrayLike, atoms: ArrayLike) -> Array:
    """Project distributions onto fixed atoms (Bellemare et al. 2017, eq. 7).

    The mass at a source atom is shared by its two neighbors among the atoms, in proportion to their closeness.

    Args:
      probs: [B, K] float (or any batch axes), the mass at each source atom.
      source_atoms: [B, K] float, clipped to the range of `atoms`.
      atoms: [M] float, strictly increasing, M >= 2, not necessarily evenly spaced.

    Returns:
      [B, M] float, the mass at each atom. Its total is that of `probs`, and so is its mean unless atoms were clipped.

    Raises:
      ValueError: probs and source_atoms differ in shape, or atoms is not [M] with M >= 2, or is not traced and does not
        increase.
    """
    check_shapes(probs=probs, source_atoms=source_atoms)
    if np.ndim(atoms) != 1 or np.shape(atoms)[0] < 2:
        raise ValueError(f"atoms has shape {np.shape(atoms)}, expected [M] with M >= 2")
    if not isinstance(atoms, Tracer) and not (np.diff(np.asarray(atoms, np.float64)) > 0).all():
        raise ValueError(f"atoms={np.asarray(atoms).tolist()!s:.80} must be strictly increasing; sort them")
    probs, source_atoms, atoms = as_floats(probs, source_atoms, atoms)
    source_atoms = jnp.clip(source_atoms, atoms[0], atoms[-1])
    gaps = jnp.diff(atoms)
    above = jnp.concatenate([gaps, gaps[-1:]])  # [M] distance to the next atom; the last entry is never used
    below = jnp.concatenate([gaps[:1], gaps])  # [M] distance to the atom before; the first entry is never used

    def mass(atom: Array, above: Array, below: Array) -> Array:
        offset = source_atoms - atom
        share = 1.0 - jnp.where(offset >= 0, offset / above, -offset / below)
        return jnp.sum(probs * jnp.maximum(share, 0.0), axis=-1)

    return jax.vmap(mass, out_axes=-1)(atoms, above, below)


def categorical_target(
    reward: ArrayLike, discount: ArrayLike, next_logits: ArrayLike, next_q_selector: ArrayLike, atoms: ArrayLike
) -> Array:
    """The distribution of r + discount Z(o', a*), projected onto the atoms (Bellemare et al. 2017, algorithm 1).

    Args:
      reward, discount: [B] float (or any batch axes).
      next_logits: [B, A, K] float.
      next_q_selector: [B, A] float, the values that select a*.
      atoms: [K] float, strictly increasing.

    Returns:
      [B, K] float, sums to 1. No gradient flows into it.

    Raises:
      ValueError: the shapes do not agree.
    """
    batch, (num_actions, num_atoms) = np.shape(next_logits)[:-2], np.shape(next_logits)[-2:]
    check_shape("reward", reward, batch)
    check_shape("discount", discount, batch)
    check_shape("next_q_selector", next_q_selector, (*batch, num_actions))
    check_shape("atoms", atoms, (num_atoms,))
    reward, discount, next_logits, atoms = as_floats(reward, discount, next_logits, atoms)
    next_action = jnp.argmax(jnp.asarray(next_q_selector), axis=-1)
    next_row = _take_row(next_logits, next_action, axis=-2)
    ended = jnp.broadcast_to(discount[..., None] == 0, next_row.shape)  # all mass is then at the reward
    next_probs = jax.nn.softmax(jnp.where(ended, 0.0, next_row), axis=-1)
    return jax.lax.stop_gradient(categorical_projection(next_probs, _bellman(reward, discount, atoms), atoms))


def categorical_double_q_learning(
    logits: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    discount: ArrayLike,
    next_logits: ArrayLike,
    next_q_selector: ArrayLike,
    atoms: ArrayLike,
) -> Array:
    """Cross-entropy of a value distribution relative to its projected target (Bellemare et al. 2017, algorithm 1).

    Args:
      logits: [B, A, K] float (or any batch axes), of Z(o, .) over the atoms.
      action: [B] int.
      reward: [B] float.
      discount: [B] float.
      next_logits: [B, A, K] float, of the target network at o'.
      next_q_selector: [B, A] float, the values that select the next action; those of the target network give plain C51.
      atoms: [K] float, strictly increasing.

    Returns:
      [B] float, in nats. Minus the entropy of `categorical_target`, which has no gradient, it is the KL divergence.

    Raises:
      ValueError: the shapes do not agree.
    """
    check_shapes(logits=logits, next_logits=next_logits)
    _check_batch(np.shape(logits)[:-2], action=action, reward=reward, discount=discount)
    logits, reward, discount, next_logits, atoms = as_floats(logits, reward, discount, next_logits, atoms)
    target = categorical_target(reward, discount, next_logits, next_q_selector, atoms)
    return categorical_cross_entropy(logits, action, target)


def categorical_cross_entropy(logits: ArrayLike, action: ArrayLike, target: ArrayLike) -> Array:
    """Cross-entropy of a value distribution relative to a target, such as the result of `categorical_target`.

    Args:
      logits: [B, A, K] float (or any batch axes), of Z(o, .) over the atoms.
      action: [B] int.
      target: [B, K] float, sums to 1.

    Returns:
      [B] float, in nats. No gradient flows into the target.

    Raises:
      ValueError: the shapes do not agree.
    """
    batch, num_atoms = np.shape(logits)[:-2], np.shape(logits)[-1]
    check_shape("action", action, batch)
    check_integers(action=action)
    check_shape("target", target, (*batch, num_atoms))
    logits, target = as_floats(logits, target)
    log_probs = jax.nn.log_softmax(_take_row(logits, action, axis=-2), axis=-1)
    return -jnp.sum(jax.lax.stop_gradient(target) * log_probs, axis=-1)


def quantile_q_learning(
    quantiles: ArrayLike,
    tau: ArrayLike,
    action: ArrayLike,
    reward: ArrayLike,
    discount: ArrayLike,
    next_quantiles: ArrayLike,
    next_quantiles_selector: ArrayLike,
    *,
    kappa: ArrayLike = 1.0,
) -> Array:
    """Quantile Huber loss between a value distribution and its target (Dabney et al. 2018, eq. 10).

    The sum over the K quantiles of the mean over the K' target quantiles. The Huber loss is not divided by kappa.

    Args:
      quantiles: [B, K, A] float (or any batch axes), of Z(o, .).
      tau: [K] or [B, K] float in (0, 1), the quantile levels.
      action: [B] int.
      reward: [B] float.
      discount: [B] float.
      next_quantiles: [B, K', A] float, of the target network at o'.
      next_quantiles_selector: [B, K'', A] float, whose means select the next action.
      kappa: scalar >= 0, the error at which the Huber loss becomes linear; 0 is plain quantile regression.

    Returns:
      [B] float.

    Raises:
      ValueError: the shapes do not agree, or kappa is not a scalar.
    """
    *batch, num_quantiles, num_actions = np.shape(quantiles)
    _check_batch(batch, action=action, reward=reward, discount=discount)
    check_integers(action=action)
    for name, array in (("next_quantiles", next_quantiles), ("next_quantiles_selector", next_quantiles_selector)):
        check_shape(name, array, (*batch, *np.shape(array)[-2:-1], num_actions))
    if np.shape(tau) != (*batch, num_quantiles):
        check_shape("tau", tau, (num_quantiles,))
    quantiles, tau, reward, discount, next_quantiles = as_floats(quantiles, tau, reward, discount, next_quantiles)
    (kappa,) = scalars(quantiles, kappa=kappa)
    next_action = jnp.argmax(jnp.mean(as_floats(next_quantiles_selector)[0], axis=-2), axis=-1)
    target = _bellman(reward, discount, _take_row(next_quantiles, next_action, axis=-1))
    current = _take_row(quantiles, action, axis=-1)
    return quantile_huber(current, tau, target, kappa=kappa)


def quantile_huber(quantiles: ArrayLike, tau: ArrayLike, target: ArrayLike, *, kappa: ArrayLike = 1.0) -> Array:
    """Quantile Huber loss of the quantiles of a distribution, relative to samples of it (Dabney et al. 2018, eq. 10).

    The sum over the K quantiles of the mean over the N samples. The Huber loss is not divided by kappa.

    Args:
      quantiles: [B, K] float (or any batch axes).
      tau: [K] or [B, K] float in (0, 1), the quantile levels.
      target: [B, N] float, the samples, such as quantiles of a target network's distribution.
      kappa: scalar >= 0, the error at which the Huber loss becomes linear; 0 is plain quantile regression.

    Returns:
      [B] float. No gradient flows into the target.

    Raises:
      ValueError: the shapes do not agree, or kappa is not a scalar.
    """
    *batch, num_quantiles = np.shape(quantiles)
    check_shape("target", target, (*batch, *np.shape(target)[-1:]))
    if np.shape(tau) != (*batch, num_quantiles):
        check_shape("tau", tau, (num_quantiles,))
    quantiles, tau, target = as_floats(quantiles, tau, target)
    (kappa,) = scalars(quantiles, kappa=kappa)
    # error[..., i, j] = target_j - quantile_i
    error = jnp.expand_dims(jax.lax.stop_gradient(target), -2) - jnp.expand_dims(quantiles, -1)
    size = jnp.abs(error)
    quadratic = jnp.minimum(size, kappa)
    loss = jnp.where(kappa > 0, quadratic * (size - 0.5 * quadratic), size)
    tau = jnp.broadcast_to(tau, quantiles.shape)[..., None]
    weight = jnp.where(error < 0, 1.0 - tau, tau)
    return jnp.sum(jnp.mean(weight * loss, axis=-1), axis=-1)


def _check_batch(batch: Sequence[int], **arrays: ArrayLike) -> None:
    """Raise ValueError, naming the argument, unless all arrays have the shape `batch`."""
    for name, array in arrays.items():
        check_shape(name, array, batch)


def _take_row(values: Array, index: ArrayLike, axis: int) -> Array:
    """Entry `index` [B] along `axis` (-1 or -2) of values [B, ., .], NaN where there is none."""
    index = jnp.expand_dims(no_wraparound(index, values.shape[axis]), (-2, -1))
    return jnp.squeeze(jnp.take_along_axis(values, index, axis=axis, mode="fill"), axis)


def _bellman(reward: Array, discount: Array, support: Array) -> Array:
    """reward + discount * support, [B, K], with support [K] or [B, K], which may be NaN where discount is 0."""
    shape = (*reward.shape, support.shape[-1])
    reward, discount = (jnp.broadcast_to(x[..., None], shape) for x in (reward, discount))
    return reward + jnp.where(discount == 0, 0.0, discount * jnp.broadcast_to(support, shape))

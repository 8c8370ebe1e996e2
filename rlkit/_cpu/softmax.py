"""Log-probability and entropy of a softmax, with gradients written out.

By the chain rule, through one softmax for the log-probability and one for the entropy, they take half as long again on
a CPU. Inside, arrays are [A, ...]: see `_actions_first`; times: benchmarks/ppo/NOTES.md. In `lax`, as each program of a
discrete policy traces this several times, at several shapes: jnp's functions take a millisecond for each of those.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlkit._cpu.primitives import keep_layout
from rlkit._cpu.switch import enabled
from rlkit.types import Array

_FEW = 4096  # numbers, below which XLA's CPU backend sums neighbors fast; see benchmarks/ppo/NOTES.md


def softmax_log_prob(logits: Array, action: Array) -> Array:
    """Return log softmax(logits)[action], [...] float.

    Args:
      logits: [..., A] float, unnormalized.
      action: [...] int; where it is outside [0, A), the result is NaN and has no gradient.
    """
    if action.dtype.itemsize < 4:  # its dtype may be too narrow to count the actions
        action = lax.convert_element_type(action, np.int32)
    if enabled():
        return _log_prob(_actions_first(logits), action)
    exists = (action >= 0) & (action < logits.shape[-1])
    column = jnp.where(exists, action, jnp.zeros_like(action))[..., None]
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), column, axis=-1)[..., 0]
    return jnp.where(exists, log_prob, jnp.nan)


def softmax_entropy(logits: Array) -> Array:
    """Return -Σ p log p in nats, [...] float, of p = softmax(logits), logits [..., A] float."""
    if enabled():
        return _entropy(_actions_first(logits))
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.sum(jnp.exp(log_probs) * _finite(log_probs), axis=-1)


@jax.custom_jvp
def _actions_first(x: Array) -> Array:
    """x [..., A] as [A, ...], in memory too where it is not small.

    XLA's CPU backend takes 10 ns for a sum over a few neighbors, and cannot vectorize a broadcast along them.
    """
    transposed = lax.transpose(x, (x.ndim - 1, *range(x.ndim - 1)))
    return transposed if x.size < _FEW else keep_layout(transposed)


@_actions_first.defjvp
def _actions_first_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents  # in this order, the cotangent is stored after it is transposed back
    tangent = tangent if x.size < _FEW else keep_layout(tangent)
    return _actions_first(x), lax.transpose(tangent, (x.ndim - 1, *range(x.ndim - 1)))


def _log_probs_and_probs(logits: Array) -> tuple[Array, Array]:
    """The log-probabilities and the probabilities, both [A, ...]."""
    shifted = lax.sub(logits, _repeat(lax.stop_gradient(lax.reduce_max(logits, (0,))), logits))
    weights = lax.exp(shifted)
    total = lax.reduce_sum(weights, (0,))
    return lax.sub(shifted, _repeat(lax.log(total), logits)), lax.div(weights, _repeat(total, logits))


def _finite(log_probs: Array) -> Array:
    """Log-probabilities without -inf, which times a probability of 0 would be NaN."""
    return lax.max(log_probs, lax.full_like(log_probs, np.finfo(log_probs.dtype).min))


def _repeat(x: Array, logits: Array) -> Array:
    """x [...] for each action, [A, ...]."""
    return lax.broadcast(x, logits.shape[:1])


def _where(mask: Array, x: Array, other: float) -> Array:
    """jnp.where, of float arrays of one shape and a number."""
    return lax.select(mask, x, lax.full(x.shape, other, x.dtype))


@jax.custom_jvp
def _log_prob(logits: Array, action: Array) -> Array:
    # A sum over a mask, which fuses with what is around it; a gather takes eight more kernels.
    log_probs, _ = _log_probs_and_probs(logits)
    log_prob = lax.reduce_sum(_where(_one_hot(logits, action), log_probs, 0.0), (0,))
    return _where(_exists(logits, action), log_prob, np.nan)


@_log_prob.defjvp
def _log_prob_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """d log p(a) = Σ_i (1[i = a] - p_i) d logits_i."""
    logits, action = primals
    one_hot = lax.convert_element_type(_one_hot(logits, action), logits.dtype)
    slope = lax.sub(one_hot, _log_probs_and_probs(logits)[1])
    tangent = lax.reduce_sum(lax.mul(slope, tangents[0]), (0,))
    return _log_prob(logits, action), _where(_exists(logits, action), tangent, 0.0)


def _one_hot(logits: Array, action: Array) -> Array:
    """[A, ...] bool, true in the row of the action."""
    return lax.eq(lax.broadcasted_iota(action.dtype, logits.shape, 0), _repeat(action, logits))


def _exists(logits: Array, action: Array) -> Array:
    """[...] bool, true where the action is in [0, A)."""
    none, count = (action.dtype.type(number) for number in (0, logits.shape[0]))
    return lax.bitwise_and(lax.ge(action, none), lax.lt(action, count))


@jax.custom_jvp
def _entropy(logits: Array) -> Array:
    log_probs, probs = _log_probs_and_probs(logits)
    return lax.neg(lax.reduce_sum(lax.mul(probs, _finite(log_probs)), (0,)))


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dH = -Σ_i p_i (log p_i + H) d logits_i."""
    (logits,) = primals
    log_probs, probs = _log_probs_and_probs(logits)
    entropy = _entropy(logits)
    slope = lax.mul(probs, lax.add(_finite(log_probs), _repeat(entropy, logits)))
    return entropy, lax.neg(lax.reduce_sum(lax.mul(slope, tangents[0]), (0,)))

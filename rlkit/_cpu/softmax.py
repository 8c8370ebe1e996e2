"""What a policy gradient takes of a softmax, with gradients written out.

By the chain rule, through one softmax for the log-probability and one for the entropy, they take half as long again on
a CPU. Inside, arrays are [A, ...]: see `_leading`; times: benchmarks/ppo/NOTES.md. In `lax`, as each program of a
discrete policy traces this several times, at several shapes: jnp's functions take a millisecond for each of those.
"""

import jax
import numpy as np
from jax import lax

from rlkit._cpu.primitives import written
from rlkit.types import Array

FEW = 4096  # numbers, below which XLA's CPU backend sums neighbors fast; see benchmarks/ppo/NOTES.md


def log_prob(logits: Array, action: Array) -> Array:
    """logits [..., A] float, action [...] int -> [...], NaN and without a gradient where there is no such action."""
    if action.dtype.itemsize < 4:  # too narrow, perhaps, to count the actions
        action = lax.convert_element_type(action, np.int32)
    return _log_prob(_leading(logits), action)


def entropy(logits: Array) -> Array:
    """logits [..., A] float -> [...], -Σ p log p."""
    return _entropy(_leading(logits))


@jax.custom_jvp
def _leading(x: Array) -> Array:
    """x [..., A] as [A, ...], in memory too where it is not small.

    XLA's CPU backend takes 10 ns for a sum over a few neighbors, and cannot vectorize what is broadcast along them.
    """
    turned = lax.transpose(x, (x.ndim - 1, *range(x.ndim - 1)))
    return turned if x.size < FEW else written(turned)


@_leading.defjvp
def _leading_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents  # the transpose writes down what it has turned back, hence the order
    tangent = tangent if x.size < FEW else written(tangent)
    return _leading(x), lax.transpose(tangent, (x.ndim - 1, *range(x.ndim - 1)))


def _both(logits: Array) -> tuple[Array, Array]:
    """The log-probabilities and the probabilities, both [A, ...]."""
    shifted = lax.sub(logits, _along(lax.stop_gradient(lax.reduce_max(logits, (0,))), logits))
    weights = lax.exp(shifted)
    total = lax.reduce_sum(weights, (0,))
    return lax.sub(shifted, _along(lax.log(total), logits)), lax.div(weights, _along(total, logits))


def _along(x: Array, logits: Array) -> Array:
    """x [...] for each action, [A, ...]."""
    return lax.broadcast(x, logits.shape[:1])


def _where(mask: Array, x: Array, other: float) -> Array:
    """jnp.where, of float arrays of one shape and a number."""
    return lax.select(mask, x, lax.full(x.shape, other, x.dtype))


@jax.custom_jvp
def _log_prob(logits: Array, action: Array) -> Array:
    # A sum over a mask, which fuses with what is around it; a gather takes eight more kernels.
    log_prob = lax.reduce_sum(_where(_taken(logits, action), _both(logits)[0], 0.0), (0,))
    return _where(_exists(logits, action), log_prob, np.nan)


@_log_prob.defjvp
def _log_prob_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """d log p(a) = Σ_i (1[i = a] - p_i) d logits_i."""
    logits, action = primals
    slope = lax.sub(lax.convert_element_type(_taken(logits, action), logits.dtype), _both(logits)[1])
    along = lax.reduce_sum(lax.mul(slope, tangents[0]), (0,))
    return _log_prob(logits, action), _where(_exists(logits, action), along, 0.0)


def _taken(logits: Array, action: Array) -> Array:
    """[A, ...] bool, which entry is the action's."""
    return lax.eq(lax.broadcasted_iota(action.dtype, logits.shape, 0), _along(action, logits))


def _exists(logits: Array, action: Array) -> Array:
    """[...] bool, whether there is such an action."""
    none, count = (action.dtype.type(number) for number in (0, logits.shape[0]))
    return lax.bitwise_and(lax.ge(action, none), lax.lt(action, count))


@jax.custom_jvp
def _entropy(logits: Array) -> Array:
    log_probs, probs = _both(logits)
    return lax.neg(lax.reduce_sum(lax.mul(probs, log_probs), (0,)))


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dH = -Σ_i p_i (log p_i + H) d logits_i."""
    (logits,) = primals
    log_probs, probs = _both(logits)
    found = _entropy(logits)
    slope = lax.mul(probs, lax.add(log_probs, _along(found, logits)))
    return found, lax.neg(lax.reduce_sum(lax.mul(slope, tangents[0]), (0,)))

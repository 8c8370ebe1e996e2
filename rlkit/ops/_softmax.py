"""What a policy gradient takes of a softmax, with gradients written out.

By the chain rule, through one softmax for the log-probability and one for the entropy, they take half as long again on
a CPU. Inside, arrays are [A, ...]: see `_leading`; benchmarks/NOTES.md has the times.
"""

import jax
import jax.numpy as jnp

from rlkit._xla import written
from rlkit.types import Array

FEW = 4096  # numbers, below which XLA's CPU backend sums neighbors fast; see benchmarks/NOTES.md


def log_prob(logits: Array, action: Array) -> Array:
    """logits [..., A] float, action [...] int -> [...], NaN and without a gradient where there is no such action."""
    return _log_prob(_leading(logits), action)


def entropy(logits: Array) -> Array:
    """logits [..., A] float -> [...], -Σ p log p."""
    return _entropy(_leading(logits))


@jax.custom_jvp
def _leading(x: Array) -> Array:
    """x [..., A] as [A, ...], in memory too where it is not small.

    XLA's CPU backend takes 10 ns for a sum over a few neighbors, and cannot vectorize what is broadcast along them.
    """
    turned = jnp.moveaxis(x, -1, 0)
    return turned if x.size < FEW else written(turned)


@_leading.defjvp
def _leading_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents  # the transpose writes down what it has turned back, hence the order
    return _leading(x), jnp.moveaxis(tangent if x.size < FEW else written(tangent), -1, 0)


def _both(logits: Array) -> tuple[Array, Array]:
    """The log-probabilities and the probabilities, both [A, ...]."""
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=0, keepdims=True))
    weights = jnp.exp(shifted)
    total = jnp.sum(weights, axis=0, keepdims=True)
    return shifted - jnp.log(total), weights / total


@jax.custom_jvp
def _log_prob(logits: Array, action: Array) -> Array:
    # A sum over a mask, which fuses with what is around it; a gather takes eight more kernels.
    log_prob = jnp.sum(jnp.where(_taken(logits, action), _both(logits)[0], 0.0), axis=0)
    return jnp.where(_exists(logits, action), log_prob, jnp.nan)


@_log_prob.defjvp
def _log_prob_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """d log p(a) = Σ_i (1[i = a] - p_i) d logits_i."""
    logits, action = primals
    slope = jnp.where(_taken(logits, action), 1.0, 0.0) - _both(logits)[1]
    along = jnp.sum(slope * tangents[0], axis=0)
    return _log_prob(logits, action), jnp.where(_exists(logits, action), along, 0.0)


def _taken(logits: Array, action: Array) -> Array:
    """[A, ...] bool, which entry is the action's."""
    return jax.lax.broadcasted_iota(action.dtype, logits.shape, 0) == action[None]


def _exists(logits: Array, action: Array) -> Array:
    """[...] bool, whether there is such an action."""
    return (action >= 0) & (action < logits.shape[0])


@jax.custom_jvp
def _entropy(logits: Array) -> Array:
    log_probs, probs = _both(logits)
    return -jnp.sum(probs * log_probs, axis=0)


@_entropy.defjvp
def _entropy_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dH = -Σ_i p_i (log p_i + H) d logits_i."""
    log_probs, probs = _both(*primals)
    found = _entropy(*primals)
    return found, -jnp.sum(probs * (log_probs + found[None]) * tangents[0], axis=0)

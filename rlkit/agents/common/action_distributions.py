"""Distributions of actions from the outputs of a policy network, and actions of any space from their samples.

A policy samples a raw action: the integers of a discrete space, or for a Box an unbounded vector [D], which `action`
converts to the environment's units. Log-probs are those of the raw action, so that neither clipping nor a saturated
tanh can make a ratio of them wrong. The parts of a Dict or a Tuple are independent, and have a raw action each.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlkit.ops.distributions import Categorical, DiagNormal, Joint, MultiDiscrete, TanhNormal
from rlkit.spaces import Box, Dict, Discrete, Space, Tuple, leaf_spaces, shape_of
from rlkit.spaces import MultiDiscrete as MultiDiscreteSpace
from rlkit.types import Array, Key, PyTree

Distribution = Categorical | MultiDiscrete | DiagNormal | TanhNormal | Joint


def kl(old: Distribution, new: Distribution) -> Array:
    """KL(old || new) [...] of two distributions of the same kind."""
    return old.kl(new)  # pyright: ignore[reportArgumentType]


def supports(space: Space) -> bool:
    """True for action spaces that have a distribution: Discrete, MultiDiscrete, Box of floats; Dict, Tuple of these."""
    if isinstance(space, Dict | Tuple):
        parts = jax.tree.leaves(leaf_spaces(space))
        return bool(parts) and all(map(supports, parts))
    floats = isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)
    return floats or isinstance(space, Discrete | MultiDiscreteSpace)


def distribution(space: Space, output: PyTree, mask: Array | None, *, squash: bool) -> Distribution:
    """The distribution of raw actions.

    Args:
      space: the action space.
      output: of the network: logits [..., A], or (loc, log_std) [..., D], or for gSDE (loc [..., D],
        log_std [F, D], features z [..., F]), whose scale is sqrt(sum_i z_i^2 exp(2 log_std_ij)) (Raffin et al. 2021).
        For a Dict or a Tuple, these of each part, in the structure of an action.
      mask: [..., A] bool, the legal actions of a discrete space, or None for all.
      squash: whether a Box's actions pass through a tanh; raw actions are then the values before it.
    """
    if isinstance(space, Dict | Tuple):
        part = partial(distribution, mask=None, squash=squash)
        return Joint(jax.tree.map(part, leaf_spaces(space), output))
    if isinstance(space, Discrete):
        return Categorical(output) if mask is None else Categorical.masked(output, mask)
    if isinstance(space, MultiDiscreteSpace):
        nvec = tuple(space.nvec)
        return MultiDiscrete(output, nvec) if mask is None else MultiDiscrete.masked(output, nvec, mask)
    loc, log_std, *rest = output
    scale = jnp.sqrt(jnp.square(rest[0]) @ jnp.exp(2 * log_std) + 1e-6) if rest else jnp.exp(log_std)
    if squash:
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        fixed = low == high  # there, a density would be infinite; with other bounds its ratios are the same
        return TanhNormal(loc, scale, np.where(fixed, low - 1, low), np.where(fixed, low + 1, high))
    return DiagNormal(loc, scale)


def sample(dist: Distribution, key: Key) -> PyTree:
    """A raw action."""
    if isinstance(dist, Joint):
        return dist.map(sample, dist.split(key))
    return dist.sample_pre_tanh(key) if isinstance(dist, TanhNormal) else dist.sample(key)


def mode(dist: Distribution) -> PyTree:
    """The raw action that a greedy policy takes."""
    if isinstance(dist, Joint):
        return dist.map(mode)
    return dist.loc if isinstance(dist, TanhNormal) else dist.mode()


def log_prob(dist: Distribution, raw: PyTree) -> Array:
    """The log-probability [...] of raw actions."""
    if isinstance(dist, Joint):
        return dist.total(log_prob, raw)
    return dist.log_prob_pre_tanh(raw) if isinstance(dist, TanhNormal) else dist.log_prob(raw)


def action(space: Space, raw: PyTree, *, squash: bool) -> PyTree:
    """The environment's action for a raw action: [..., D] -> [..., *space.shape] for a Box, alone or as a part.

    Each dimension of a Box is converted by its own bounds. With two bounds, raw values of -1 to 1 span it; they are
    clipped beyond, or pass through a tanh where `squash` is set. With one bound, the action is the raw value plus
    low + 1, or plus high - 1, clipped at the bound: a raw 0, with which policies start, is 1 away from it. Without
    bounds, the action is the raw value.
    """
    return jax.tree.map(partial(_leaf_action, squash=squash), leaf_spaces(space), raw)


def _leaf_action(space: Any, raw: Array, *, squash: bool) -> Array:
    """`action` for a Discrete, MultiDiscrete or Box."""
    if not isinstance(space, Box):
        return raw.astype(shape_of(space).dtype)
    low, high = jnp.asarray(space.low), jnp.asarray(space.high)
    raw = raw.reshape(*raw.shape[:-1], *space.shape)
    below, above = space.bounded_below, space.bounded_above
    if space.bounded:
        raw = _span(low, high, raw, squash)
    elif below.any() or above.any():
        both = below & above
        start, end = jnp.asarray(np.where(both, space.low, -1)), jnp.asarray(np.where(both, space.high, 1))
        origin = np.where(below, space.low + 1, np.where(above, space.high - 1, 0))  # of raw values, at one bound
        raw = jnp.where(both, _span(start, end, raw, squash), raw + jnp.asarray(np.where(both, 0, origin)))
    return jnp.clip(raw, low, high).astype(shape_of(space).dtype)


def _span(low: Array, high: Array, raw: Array, squash: bool) -> Array:
    """The values from low to high, all [*space.shape], for raw values of -1 to 1."""
    unit = jnp.tanh(raw) if squash else jnp.clip(raw, -1.0, 1.0)
    return low + (high - low) * (unit + 1) / 2

"""Probability distributions over actions, as pytrees, which pass through jit, vmap and scan like arrays.

Each has `sample(key)`, `mode()`, `log_prob(x)`, `entropy()` and `kl(other)`. Batch axes come first and are free; the
last axis holds the categories or the action's dimensions, and results have the batch shape. Parameters below float32
are promoted to float32 before anything is computed; float64 stays float64. `Joint` is a product of any of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike

from rlkit import _cpu
from rlkit.ops._arrays import as_floats, check_integers, check_shape
from rlkit.types import Array, Key, PyTree


class Categorical(flax.struct.PyTreeNode):
    """One of A actions, with probabilities softmax(logits).

    Attributes:
      logits: [..., A] float, unnormalized.
    """

    logits: Array  # [..., A]

    @classmethod
    def masked(cls, logits: ArrayLike, mask: ArrayLike) -> Categorical:
        """Return a categorical over the legal actions only.

        An illegal action has probability 0 and is never sampled; entropy, KL and all gradients stay finite, as its
        logit is the most negative finite number rather than -inf. A row without any legal action is uniform.

        Args:
          logits: [..., A] float; entries of illegal actions are ignored and have no gradient.
          mask: [..., A] bool, True where the action is legal.

        Raises:
          ValueError: the shapes differ.
        """
        (logits,) = as_floats(logits)
        check_shape("mask", mask, logits.shape)
        return cls(jnp.where(jnp.asarray(mask), logits, jnp.finfo(logits.dtype).min))

    @property
    def log_probs(self) -> Array:
        """[..., A] float, the log-probability of every action."""
        return jax.nn.log_softmax(as_floats(self.logits)[0], axis=-1)

    @property
    def probs(self) -> Array:
        """[..., A] float, the probability of every action."""
        return jax.nn.softmax(as_floats(self.logits)[0], axis=-1)

    def sample(self, key: Key) -> Array:
        """[...] int32, one draw for each row."""
        return jax.random.categorical(key, as_floats(self.logits)[0], axis=-1).astype(jnp.int32)

    def mode(self) -> Array:
        """[...] int32, the most probable action, the first of several."""
        return jnp.argmax(jnp.asarray(self.logits), axis=-1).astype(jnp.int32)

    def log_prob(self, action: ArrayLike) -> Array:
        """action: [...] int -> [...] float, NaN where it is out of range. ValueError on another shape or dtype."""
        check_shape("action", action, np.shape(self.logits)[:-1])
        check_integers(action=action)
        return _cpu.softmax_log_prob(as_floats(self.logits)[0], jnp.asarray(action))

    def entropy(self) -> Array:
        """[...] float, in nats, -Σ p log p."""
        return _cpu.softmax_entropy(as_floats(self.logits)[0])

    def kl(self, other: Categorical) -> Array:
        """[...] float, KL(self || other) in nats. Raises ValueError if the shapes differ."""
        check_shape("other.logits", other.logits, np.shape(self.logits))
        p, q = as_floats(self.log_probs, other.log_probs)
        return jnp.sum(jnp.exp(p) * jnp.where(jnp.isneginf(p), 0.0, p - q), axis=-1)  # 0 log 0 = 0


class MultiDiscrete(flax.struct.PyTreeNode):
    """Several independent categorical actions, the i-th one of nvec[i].

    Attributes:
      logits: [..., sum(nvec)] float, unnormalized, the parts one after the other.
      nvec: tuple of int, static: the number of actions of each part.
    """

    logits: Array  # [..., sum(nvec)]
    nvec: tuple[int, ...] = flax.struct.field(pytree_node=False)

    @classmethod
    def masked(cls, logits: ArrayLike, nvec: tuple[int, ...], mask: ArrayLike) -> MultiDiscrete:
        """Return the same over legal actions only: mask is [..., sum(nvec)] bool. See `Categorical.masked`."""
        return cls(Categorical.masked(logits, mask).logits, nvec)

    @property
    def parts(self) -> tuple[Categorical, ...]:
        """One Categorical for each entry of nvec, logits [..., nvec[i]]. Raises ValueError if they do not add up."""
        check_shape("logits", self.logits, (*np.shape(self.logits)[:-1], sum(self.nvec)))
        ends = np.cumsum(self.nvec)[:-1].tolist()
        return tuple(Categorical(part) for part in jnp.split(self.logits, ends, axis=-1))

    def sample(self, key: Key) -> Array:
        """[..., len(nvec)] int32, one draw for each row."""
        keys = jax.random.split(key, len(self.nvec))
        return jnp.stack([part.sample(k) for part, k in zip(self.parts, keys, strict=True)], axis=-1)

    def mode(self) -> Array:
        """[..., len(nvec)] int32, the most probable actions."""
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, action: ArrayLike) -> Array:
        """action: [..., len(nvec)] int -> [...] float, summed over the parts. Raises ValueError on another shape."""
        check_shape("action", action, (*np.shape(self.logits)[:-1], len(self.nvec)))
        action = jnp.asarray(action)
        return _sum(part.log_prob(action[..., i]) for i, part in enumerate(self.parts))

    def entropy(self) -> Array:
        """[...] float, in nats, summed over the parts."""
        return _sum(part.entropy() for part in self.parts)

    def kl(self, other: MultiDiscrete) -> Array:
        """[...] float, KL(self || other) in nats, summed over the parts. Raises ValueError if nvec differs."""
        if tuple(self.nvec) != tuple(other.nvec):
            raise ValueError(f"other.nvec is {other.nvec}, expected {self.nvec}")
        return _sum(mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))


class DiagNormal(flax.struct.PyTreeNode):
    """A normal distribution with independent dimensions.

    Attributes:
      loc: [..., D] float, the mean.
      scale: [..., D] float > 0, the standard deviation; fewer axes (a scalar, [D]) are broadcast to loc.
    """

    loc: Array  # [..., D]
    scale: ArrayLike  # [..., D]

    def __post_init__(self) -> None:
        _broadcast_to_loc(self, "scale")

    def _parameters(self) -> list[Array]:
        return as_floats(self.loc, self.scale)

    def sample(self, key: Key) -> Array:
        """[..., D] float, one reparameterized draw for each row."""
        loc, scale = self._parameters()
        return loc + scale * jax.random.normal(key, loc.shape, loc.dtype)

    def mode(self) -> Array:
        """[..., D] float, the mean."""
        return self._parameters()[0]

    def log_prob(self, x: ArrayLike) -> Array:
        """x: [..., D] float -> [...] float, summed over D. Raises ValueError if its shape is not that of loc."""
        check_shape("x", x, np.shape(self.loc))
        loc, scale, x = as_floats(*self._parameters(), x)
        z = (x - loc) / scale
        return -jnp.sum(0.5 * z**2 + jnp.log(scale) + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropy(self) -> Array:
        """[...] float, in nats, summed over D."""
        return jnp.sum(jnp.log(self._parameters()[1]) + 0.5 * math.log(2 * math.pi * math.e), axis=-1)

    def kl(self, other: DiagNormal) -> Array:
        """[...] float, KL(self || other) in nats, summed over D. Raises ValueError if the shapes differ."""
        check_shape("other.loc", other.loc, np.shape(self.loc))
        loc, scale, other_loc, other_scale = as_floats(*self._parameters(), *other._parameters())
        ratio = scale / other_scale
        return jnp.sum(0.5 * (ratio**2 + ((loc - other_loc) / other_scale) ** 2 - 1.0) - jnp.log(ratio), axis=-1)


class TanhNormal(flax.struct.PyTreeNode):
    """A diagonal normal squashed into a box: action = low + (high - low) (tanh(u) + 1) / 2, u ~ Normal(loc, scale).

    The squashing rounds to the bound from about |u| = 9 in float32, and there u cannot be computed from the action.
    Store u from `sample_pre_tanh` and use `log_prob_pre_tanh`, which is exact everywhere (Haarnoja et al. 2018,
    appendix C, with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u))).

    Attributes:
      loc: [..., D] float, the mean of u.
      scale: [..., D] float > 0, the standard deviation of u; fewer axes are broadcast to loc.
      low, high: [..., D] float, the finite bounds of the action; fewer axes are broadcast to loc.
    """

    loc: Array  # [..., D]
    scale: ArrayLike  # [..., D]
    low: ArrayLike = -1.0  # [..., D]
    high: ArrayLike = 1.0  # [..., D]

    def __post_init__(self) -> None:
        _broadcast_to_loc(self, "scale", "low", "high")

    @property
    def normal(self) -> DiagNormal:
        """The distribution of u, [..., D]."""
        return DiagNormal(self.loc, self.scale)

    def squash(self, u: ArrayLike) -> Array:
        """u: [..., D] float -> [..., D] float, the action in [low, high]."""
        check_shape("u", u, np.shape(self.loc))
        u, low, high = as_floats(u, self.low, self.high)
        action = low + (high - low) * (0.5 * jnp.tanh(u) + 0.5)
        # Selects remove the last bit by which rounding may exceed a bound. The gradient of a clip compares its result
        # with its argument, and is lost if a compiler computes the argument twice with different rounding.
        return jnp.where(action < low, low, jnp.where(action > high, high, action))

    def _log_slope(self, u: Array) -> Array:
        """[..., D] float, log |d action / d u|."""
        u, low, high = as_floats(u, self.low, self.high)
        return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u)) + jnp.log((high - low) / 2.0)

    def sample_pre_tanh(self, key: Key) -> Array:
        """[..., D] float, a sample of u; `squash(u)` is the action."""
        return self.normal.sample(key)

    def sample(self, key: Key) -> Array:
        """[..., D] float, one reparameterized action for each row."""
        return self.squash(self.sample_pre_tanh(key))

    def mode(self) -> Array:
        """[..., D] float, the squashed mean of u: the median of the actions, and the greedy choice."""
        return self.squash(self.normal.mode())

    def log_prob_pre_tanh(self, u: ArrayLike) -> Array:
        """u: [..., D] float -> [...] float, the log-density of the action squash(u), exact also where it saturates."""
        check_shape("u", u, np.shape(self.loc))
        log_prob, log_slope = as_floats(self.normal.log_prob(u), jnp.sum(self._log_slope(jnp.asarray(u)), axis=-1))
        return log_prob - log_slope

    def log_prob(self, action: ArrayLike) -> Array:
        """action: [..., D] float in [low, high] -> [...] float, summed over D.

        An action at a bound, which only rounding reaches, counts as an eighth of an epsilon inside it: the result is
        finite, but not exact (see `log_prob_pre_tanh`). Raises ValueError if the shape is not that of loc.
        """
        check_shape("action", action, np.shape(self.loc))
        action, low, high = as_floats(action, self.low, self.high)
        # atanh by the distances to both bounds, each of which is exact close to its bound.
        tiny = jnp.finfo(action.dtype).eps / 8
        below, above = (action - low) / (high - low), (high - action) / (high - low)
        u = 0.5 * (jnp.log(jnp.maximum(below, tiny)) - jnp.log(jnp.maximum(above, tiny)))
        return self.log_prob_pre_tanh(u)

    def entropy(self) -> Array:
        """[...] float, in nats, summed over D: H(u) + E[log slope], the expectation by Gauss-Hermite quadrature.

        With 32 nodes it is exact to 3e-3 nats per dimension up to a scale of 3, and to 0.16 at a scale of 10.
        """
        loc, scale = self.normal._parameters()
        nodes, weights = (jnp.asarray(x, loc.dtype) for x in _gauss_hermite())

        def term(node: Array, weight: Array) -> Array:
            return weight * self._log_slope(loc + scale * node)

        terms = jax.vmap(term)(nodes, weights)
        entropy, slope = as_floats(self.normal.entropy(), jnp.sum(terms, axis=(0, -1)))
        return entropy + slope

    def kl(self, other: TanhNormal) -> Array:
        """[...] float, KL(self || other) in nats: that of the normals, as both squash alike.

        Raises ValueError if the shapes differ, or bounds that are not traced do; traced ones must be equal.
        """
        check_shape("other.loc", other.loc, np.shape(self.loc))
        for name in ("low", "high"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if not (isinstance(mine, Tracer) or isinstance(theirs, Tracer)) and not np.array_equal(mine, theirs):
                raise ValueError(f"other.{name} is {theirs!s:.40}, expected {mine!s:.40}, as both must squash alike")
        return self.normal.kl(other.normal)


class Joint(flax.struct.PyTreeNode):
    """Independent distributions of the parts of an action that is a tree: a dict or a tuple, or one within another.

    Attributes:
      parts: one distribution [...] for each part, in the structure of the action, all of the same batch shape.
    """

    parts: PyTree  # of distributions [...]

    def map(self, function: Callable[..., Any], *trees: PyTree) -> PyTree:
        """Return `function(part, *values)` of each distribution [...], in the structure of the action.

        `trees` have a value for each distribution. Raises ValueError where they have another structure.
        """
        return jax.tree.map(function, self.parts, *trees, is_leaf=_is_distribution)

    def total(self, function: Callable[..., Array], *trees: PyTree) -> Array:
        """Return the sum [...] of `map`. Raises ValueError where the terms differ in shape."""
        first, *others = jax.tree.leaves(self.map(function, *trees))
        for term in others:
            check_shape("parts", term, first.shape)
        return _sum([first, *others])

    def split(self, key: Key) -> PyTree:
        """Return one key [] for each distribution, in the structure of the action."""
        parts, structure = jax.tree.flatten(self.parts, is_leaf=_is_distribution)
        return structure.unflatten(jax.random.split(key, len(parts)))

    def sample(self, key: Key) -> PyTree:
        """A tree of draws [...], one for each row, with the shape and dtype of each part's own."""
        return self.map(lambda part, key: part.sample(key), self.split(key))

    def mode(self) -> PyTree:
        """A tree of the modes [...] of the parts, with the shape and dtype of each part's own."""
        return self.map(lambda part: part.mode())

    def log_prob(self, action: PyTree) -> Array:
        """action: a tree of actions -> [...] float, summed over the parts. Raises ValueError on another structure."""
        return self.total(lambda part, x: part.log_prob(x), action)

    def entropy(self) -> Array:
        """[...] float, in nats, summed over the parts."""
        return self.total(lambda part: part.entropy())

    def kl(self, other: Joint) -> Array:
        """[...] float, KL(self || other) in nats, summed over the parts. ValueError if the structures differ."""
        return self.total(lambda part, of_other: part.kl(of_other), other.parts)


def _is_distribution(x: Any) -> bool:
    return hasattr(x, "log_prob")


def _sum(terms) -> Array:
    """Return the sum of at least one array; Python's sum would start from an int."""
    return functools.reduce(jnp.add, terms)


def _broadcast_to_loc(distribution, *names: str) -> None:
    """Give parameters with fewer axes the shape of loc, so that all leaves leave a vmap with the same batch axes.

    JAX also builds these classes around other things than parameters (axes, shapes, placeholders): those stay.
    """
    loc = distribution.loc
    if not isinstance(loc, jax.Array | np.ndarray):
        return
    for name in names:
        value = getattr(distribution, name)
        if not isinstance(value, jax.Array | np.ndarray | np.generic | float | int) or np.shape(value) == loc.shape:
            continue
        if jnp.broadcast_shapes(np.shape(value), loc.shape) != loc.shape:
            raise ValueError(
                f"{name} has shape {np.shape(value)}, expected {loc.shape}, the shape of loc, or fewer axes"
            )
        # Python numbers take a dtype: a weakly typed leaf would compile everything twice, and 16 bits round bounds.
        value = jnp.asarray(value, as_floats(loc)[0].dtype if isinstance(value, float | int) else None)
        object.__setattr__(distribution, name, jnp.broadcast_to(value, loc.shape))


@functools.cache
def _gauss_hermite(n: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights, both [n], for expectations under the standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()

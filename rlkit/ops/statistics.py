"""Running mean and variance of pytrees, explained variance, and the interquartile mean with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from rlkit import _mesh
from rlkit.ops._arrays import as_floats, as_int, check_key, check_shapes
from rlkit.types import Array, Key, PyTree


class RunningStatistics(flax.struct.PyTreeNode):
    """Count, mean and sum of squared deviations of all items so far, for each leaf.

    Attributes:
      count: [] float, the number of items. A float32 count stops at 2^24 where items come one at a time,
        and further ones are then ignored.
      mean: pytree of [...] float, like the example.
      m2: pytree of [...] float, like the example, the sum of squared deviations from the mean.
    """

    count: Array  # [] float
    mean: PyTree  # leaves [...] float
    m2: PyTree  # leaves [...] float


def running_init(example: PyTree) -> RunningStatistics:
    """Empty statistics for items like `example`: leaves [...], float32, or float64 where the example is."""
    mean = jax.tree.map(lambda x: jnp.zeros(np.shape(x), as_floats(x)[0].dtype), example)
    count, *_ = as_floats(jnp.zeros((), jnp.float32), *jax.tree.leaves(mean))
    return RunningStatistics(count, mean, jax.tree.map(jnp.zeros_like, mean))


def running_update(statistics: RunningStatistics, batch: PyTree, *, axis_name: str | None = None) -> RunningStatistics:
    """Update statistics with a batch (Chan et al. 1983, eq. 2.1).

    Sums are over differences from the first item, so that a mean far from 0 costs no precision.

    Args:
      statistics: of leaves [...].
      batch: leaves [B, ...], with any number of batch axes before those of the example, the same in each leaf; an
        empty batch changes nothing.
      axis_name: of the mesh axis whose devices have equal parts of the batch; None for one device.

    Returns:
      RunningStatistics, with the parts of all devices.

    Raises:
      ValueError: a leaf does not end in the example's shape, or the leaves differ in their batch axes.
    """
    return running_merge(statistics, _batch_statistics(statistics, batch, axis_name))


def running_merge(a: RunningStatistics, b: RunningStatistics) -> RunningStatistics:
    """Statistics of the union of two samples, leaves [...] (Chan et al. 1983, eq. 2.1). Either may be empty.

    A float32 count is exact up to 2^24. Beyond that the smaller sample enters with the share of its items by which the
    count has grown: deviations that are added to `m2` without being counted would raise the variance for ever.
    """
    count = a.count + b.count
    smaller = jnp.minimum(a.count, b.count)
    share = jnp.where(smaller > 0, (count - jnp.maximum(a.count, b.count)) / smaller, 1.0)  # 1 where the sum is exact
    share_a, share_b = jnp.where(a.count < b.count, share, 1.0), jnp.where(a.count < b.count, 1.0, share)
    weight_b = share_b * b.count / jnp.maximum(count, 1.0)

    def mean(mean_a: Array, mean_b: Array) -> Array:
        return mean_a + (mean_b - mean_a) * weight_b.astype(mean_a.dtype)

    def m2(m2_a: Array, m2_b: Array, mean_a: Array, mean_b: Array) -> Array:
        m2_a, m2_b = share_a.astype(m2_a.dtype) * m2_a, share_b.astype(m2_b.dtype) * m2_b
        return m2_a + m2_b + (mean_b - mean_a) ** 2 * (share_a * a.count * weight_b).astype(mean_a.dtype)

    return RunningStatistics(count, jax.tree.map(mean, a.mean, b.mean), jax.tree.map(m2, a.m2, b.m2, a.mean, b.mean))


def running_std(statistics: RunningStatistics) -> PyTree:
    """Standard deviation (of the population), leaves [...] float; 1 while the count is 0."""
    return jax.tree.map(jnp.sqrt, _variance(statistics))


def normalize(statistics: RunningStatistics, x: PyTree, clip: ArrayLike = 10.0, epsilon: ArrayLike = 1e-8) -> PyTree:
    """Compute (x - mean) / sqrt(variance + epsilon), clipped to [-clip, clip]; mean 0, variance 1 while count is 0.

    Args:
      statistics: of leaves [...].
      x: leaves [..., as in the example], with any batch axes first; ints and floats below float32 become float32.
      clip: scalar > 0, in standard deviations; infinity means off.
      epsilon: scalar > 0, in units of the variance.

    Returns:
      pytree like x, float.

    Raises:
      ValueError: a leaf does not end in the example's shape.
    """

    def leaf(x: ArrayLike, mean: Array, variance: Array) -> Array:
        _batch_axes(x, mean)
        x, mean, variance = as_floats(x, mean, variance)
        bound = jnp.asarray(clip).astype(x.dtype)
        scale = jnp.sqrt(variance + jnp.asarray(epsilon).astype(x.dtype))
        return jnp.clip((x - jnp.broadcast_to(mean, x.shape)) / jnp.broadcast_to(scale, x.shape), -bound, bound)

    return jax.tree.map(leaf, x, statistics.mean, _variance(statistics))


def explained_variance(value: ArrayLike, target: ArrayLike, *, axis_name: str | None = None) -> Array:
    """Explained variance, 1 - Var(target - value) / Var(target): 1 is perfect, 0 is as good as a constant.

    Args:
      value: [...] float, the predictions.
      target: [...] float.
      axis_name: of the mesh axis whose devices have equal parts of both; None for one device.

    Returns:
      [] float, over all axes; NaN where the target's variance is 0, as in Stable-Baselines3, or it is empty.

    Raises:
      ValueError: the shapes differ.
    """
    check_shapes(value=value, target=target)
    value, target = as_floats(value, target)
    if not target.size:
        return jnp.full((), jnp.nan, target.dtype)
    variance, of_errors = _variance_over_all(target, axis_name), _variance_over_all(target - value, axis_name)
    return jnp.where(variance > 0, 1.0 - of_errors / variance, jnp.nan)


def iqm(scores: ArrayLike) -> Array:
    """Interquartile mean, [...] float -> [] float: the mean without the lowest and the highest quarter.

    Of n scores, floor(n / 4) are dropped on each side (Agarwal et al. 2021, section 4.3). NaN if any score is NaN, or
    if there is none.
    """
    (scores,) = as_floats(scores)
    ordered = jnp.sort(scores, axis=None)  # NaNs last, among the scores that are dropped
    dropped = ordered.size // 4
    return jnp.where(jnp.isnan(ordered).any(), jnp.nan, jnp.mean(ordered[dropped : ordered.size - dropped]))


def stratified_bootstrap(
    scores: ArrayLike, key: Key, statistic: Callable[[Array], Array] = iqm, *, resamples: int = 2000
) -> Array:
    """Stratified bootstrap: a statistic of tables whose runs are resampled within each task (Agarwal et al. 2021).

    Args:
      scores: [runs, tasks] or [runs] float.
      key: jax.random.key.
      statistic: function of a table like scores that returns a [] float.
      resamples: int >= 1, static.

    Returns:
      [resamples] float.

    Raises:
      ValueError: scores is empty, or has neither one nor two axes; key is not a key; resamples is not such an integer.
    """
    check_key(key)
    resamples = as_int("resamples", resamples)
    (table,) = as_floats(scores)
    if table.ndim not in (1, 2) or table.size == 0:
        raise ValueError(f"scores has shape {table.shape}, expected [runs, tasks] or [runs], not empty")

    def resample(key: Key) -> Array:
        runs = jax.random.randint(key, table.shape, 0, table.shape[0])
        return statistic(jnp.take_along_axis(table, runs, axis=0))

    return jax.vmap(resample)(jax.random.split(key, resamples))


def iqm_interval(
    scores: ArrayLike, key: Key, *, confidence: float = 0.95, resamples: int = 2000
) -> tuple[Array, Array]:
    """Percentile interval of the IQM by stratified bootstrap (Agarwal et al. 2021, section 4.1).

    Args:
      scores: [runs, tasks] or [runs] float.
      key: jax.random.key.
      confidence: in (0, 1).
      resamples: int >= 1, static.

    Returns:
      low, high: both [] float.

    Raises:
      ValueError: scores is empty or has neither one nor two axes, or confidence is not inside (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence={confidence} must be inside (0, 1)")
    statistics = stratified_bootstrap(scores, key, resamples=resamples)
    tail = (1.0 - confidence) / 2.0
    low, high = jnp.quantile(statistics, jnp.asarray([tail, 1.0 - tail], statistics.dtype))
    return low, high


def _batch_axes(x: ArrayLike, like: Array) -> tuple[int, ...]:
    """Indices of the axes of x before those of `like`. Raises ValueError if x does not end in that shape."""
    lead = np.ndim(x) - like.ndim
    if lead < 0 or np.shape(x)[lead:] != like.shape:
        raise ValueError(f"a leaf has shape {np.shape(x)}, expected it to end in {like.shape}, the example's shape")
    return tuple(range(lead))


def _batch_statistics(like: RunningStatistics, batch: PyTree, axis_name: str | None) -> RunningStatistics:
    """Statistics of one batch, the parts of all devices of the axis, for items like those of `like`."""
    shapes = {
        np.shape(x)[: np.ndim(x) - m.ndim] for x, m in zip(*map(jax.tree.leaves, (batch, like.mean)), strict=True)
    }
    if len(shapes) != 1:
        raise ValueError(f"the leaves have batch axes {sorted(shapes)}, expected one shape for all")
    (shape,) = shapes
    if not math.prod(shape):
        return running_init(like.mean)

    def moments(x: ArrayLike, mean: Array) -> tuple[Array, Array]:
        axes = _batch_axes(x, mean)
        x = jnp.asarray(x).astype(mean.dtype)
        origin = _mesh.largest(x[(0,) * len(axes)], axis_name)  # an item, the same for all devices
        shifted = x - jnp.broadcast_to(origin, x.shape)
        shift = _mesh.mean(jnp.mean(shifted, axis=axes), axis_name)
        m2 = jnp.sum((shifted - jnp.broadcast_to(shift, x.shape)) ** 2, axis=axes)
        return origin + shift, _mesh.total(m2, axis_name)

    pairs = jax.tree.map(moments, batch, like.mean)
    mean, m2 = jax.tree.transpose(jax.tree.structure(like.mean), jax.tree.structure((0, 0)), pairs)
    return RunningStatistics(jnp.full((), math.prod(shape) * _mesh.size(axis_name), like.count.dtype), mean, m2)


def _variance(statistics: RunningStatistics) -> PyTree:
    """Variance of the population, leaves [...]; 1 while the count is 0."""

    def leaf(m2: Array) -> Array:
        count = statistics.count.astype(m2.dtype)
        return jnp.where(count > 0, m2 / jnp.maximum(count, 1.0), 1.0)

    return jax.tree.map(leaf, statistics.m2)


def _variance_over_all(x: Array, axis_name: str | None) -> Array:
    """Variance over all axes, of differences from one entry, so that equal entries give exactly 0."""
    shifted = x - _mesh.largest(x[(0,) * x.ndim], axis_name)
    if axis_name is None:
        return jnp.var(shifted)
    mean = jnp.mean(shifted)
    return _mesh.mean(jnp.var(shifted) + jnp.square(mean - _mesh.mean(mean, axis_name)), axis_name)

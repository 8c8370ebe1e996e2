"""Priorities of the items of a ring, in a segment tree (Schaul et al. 2016).

An item of priority p has the mass (|p| + eps)^alpha and is drawn with P = mass / total (eq. 1). Where no item can be
drawn the mass is 0. The leaves of the tree are the flat indices, slot * N + env, of the items' first steps. The tree
keeps the sum and the minimum of all masses, and the maximum of those that `update` wrote: a new item gets that maximum,
so that it is likely to be drawn soon. A mass that was only assigned to a new item is left out of the maximum, otherwise
the first guess would be passed on from item to item; an outlier leaves it when its item is overwritten.
"""

import math
from dataclasses import dataclass
from numbers import Real

import jax.numpy as jnp
from flax import struct

from rlkit import _mesh
from rlkit.replay import segment_tree, storage
from rlkit.replay.segment_tree import SegmentTree
from rlkit.replay.short_repr import short_repr
from rlkit.replay.storage import Ring
from rlkit.replay.windows import Handle, Place
from rlkit.types import Array, ConfigError, Key


class Priorities(struct.PyTreeNode):
    """Masses of the items of a ring."""

    mass: SegmentTree  # over [R * N] float32; its maximum is over measured masses only
    start: Array  # [] float32, the mass of a new item while nothing has been measured

    __repr__ = short_repr


@dataclass(frozen=True)
class Settings:
    """Exponents and constants that make masses and weights of priorities.

    Raises:
      ConfigError: a setting is out of range.
    """

    alpha: float
    beta: float
    eps: float
    start_priority: float

    def __post_init__(self):
        for name, value in vars(self).items():
            if not isinstance(value, Real):
                raise ConfigError(f"{name}={value!r:.40} must be a number")
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha={self.alpha} must be finite and at least 0; 0 draws uniformly, 0.6 is usual")
        if not 0 <= self.beta < math.inf:
            raise ConfigError(f"beta={self.beta} must be finite and at least 0; 0 gives weights of 1, 0.4 is usual")
        if not 0 <= self.eps < math.inf:
            raise ConfigError(f"eps={self.eps} must be finite and at least 0; 1e-6 is usual")
        if not 0 < self.start_priority < math.inf:
            raise ConfigError(f"start_priority={self.start_priority} must be finite and above 0; 1 is usual")


def init(capacity: int, settings: Settings) -> Priorities:
    """Return priorities of `capacity` steps, at none of which an item can be drawn."""
    return Priorities(
        mass=segment_tree.init(capacity),
        start=jnp.float32((settings.start_priority + settings.eps) ** settings.alpha),
    )


def clear(priorities: Priorities) -> Priorities:
    """Return the priorities of the same steps, at none of which an item can be drawn."""
    tree = priorities.mass
    return priorities.replace(mass=segment_tree.init(tree.capacity, tree.statistics, tree.fanout))


def remove_rows(priorities: Priorities, slots: Array, num_envs: int) -> Priorities:
    """Remove the items that start in the rows in slots [T] int32; a slot R is skipped."""
    zeros = jnp.zeros((slots.shape[0] * num_envs,))
    return priorities.replace(mass=_write_rows(priorities.mass, slots, zeros))


def insert_rows(priorities: Priorities, slots: Array, num_envs: int, axis_name: str | None = None) -> Priorities:
    """Insert new items that start at all steps of the rows in slots [T] int32; a slot R is skipped."""
    new = jnp.broadcast_to(_new_mass(priorities, axis_name), (slots.shape[0] * num_envs,))
    return priorities.replace(mass=_write_rows(priorities.mass, slots, new, in_maximum=False))


def insert(priorities: Priorities, index: Array, axis_name: str | None = None) -> Priorities:
    """Insert new items at the flat indices [B] int32; those of the capacity and above are skipped."""
    new = jnp.broadcast_to(_new_mass(priorities, axis_name), index.shape)
    return priorities.replace(mass=segment_tree.write(priorities.mass, index, new, in_maximum=False))


def _new_mass(priorities: Priorities, axis_name: str | None) -> Array:
    """Mass of a new item, [] float32: the largest measured one on all devices of the axis."""
    largest = _mesh.largest(segment_tree.maximum(priorities.mass), axis_name)
    return jnp.where(largest > 0, largest, priorities.start)


def _write_rows(mass: SegmentTree, slots: Array, value: Array, *, in_maximum: bool = True) -> SegmentTree:
    """Write values [T * N] at all steps of the rows in slots [T]; one row is a run of leaves."""
    num_envs = value.shape[0] // slots.shape[0]
    if slots.shape[0] == 1:
        return segment_tree.write_run(mass, slots[0] * num_envs, value, in_maximum=in_maximum)
    index = storage.flat_indices(slots, num_envs).reshape(-1)
    return segment_tree.write(mass, index, value, in_maximum=in_maximum)


def draw(priorities: Priorities, key: Key, batch_size: int, num_envs: int, *, stratified: bool = True) -> Place:
    """Draw B places in proportion to their masses, one from each of B equal strata of the total, or all of all."""
    index, mass = segment_tree.sample_with_values(priorities.mass, key, batch_size, stratified)
    return Place(index // num_envs, index % num_envs, mass)


def weights(priorities: Priorities, place: Place, beta: Array, axis_name: str | None = None) -> Array:
    """Importance weights (size * P)^-beta, divided by the largest of all items (Schaul et al. 2016, section 3.4).

    They are (mass / least mass)^-beta, as size and total cancel. With the items and the batch divided over D devices,
    P = mass / (D * total) with the total of the item's device, and masses are compared as shares of it.

    Returns:
      [B] float32 in [0, 1]; 0 where the mass is 0.
    """
    mass, least = place.mass, segment_tree.minimum(priorities.mass)
    if axis_name is not None:
        total = segment_tree.total(priorities.mass)
        mass, least = mass / total, _mesh.least(least / total, axis_name)
    return jnp.where(place.mass > 0, (jnp.maximum(mass, least) / least) ** -beta, 0.0)


def num_items(priorities: Priorities, num_places: Array, settings: Settings) -> Array:
    """Number of items that can be drawn, [] int32, of those at `num_places` places: with eps = 0 some have no mass.

    With eps = 0 its time grows with the capacity.
    """
    if settings.eps > 0 or settings.alpha == 0:
        return num_places
    return jnp.sum(segment_tree.values(priorities.mass) > 0, dtype=jnp.int32)


def update(priorities: Priorities, ring: Ring, index: Handle, priority: Array, settings: Settings) -> Priorities:
    """Set the priorities of sampled items to measured values.

    An item that has been overwritten since, or whose priority is not finite, is skipped. Of several priorities of one
    item the largest counts.

    Args:
      priorities: of the items of `ring`.
      ring: the rows.
      index: the handle of a sample, [B].
      priority: [B] float, of which the absolute value counts, such as TD errors.
      settings: alpha and eps.

    Raises:
      ValueError: `index` is no handle, or `priority` does not have its shape.
    """
    priority = jnp.asarray(priority)
    if not hasattr(index, "row"):
        raise ValueError(f"index is {type(index).__name__}, expected the `index` of a Sample, a handle of its items")
    if jnp.shape(priority) != jnp.shape(index.row):
        raise ValueError(
            f"priority has shape {jnp.shape(priority)}, expected {jnp.shape(index.row)}, one for each item of a sample"
        )
    slot, stored = storage.slot_of_row(ring, index.row)
    is_written = stored & jnp.isfinite(priority)
    leaf = jnp.where(is_written, jnp.where(stored, slot, 0) * ring.num_envs + index.env, ring.capacity)
    size = jnp.abs(jnp.where(is_written, priority, 0)).astype(jnp.float32)
    mass = (size + settings.eps) ** settings.alpha
    return priorities.replace(mass=segment_tree.write(priorities.mass, leaf, mass))
